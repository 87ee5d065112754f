"""The artifact browser: read-only pages of any store, made on the server, without a script or a request to elsewhere."""
