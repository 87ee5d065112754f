"""Protection in front of each of our HTTP servers: Host and Origin checks, and the link that signs a person in.

May import: nothing of the project.
"""
