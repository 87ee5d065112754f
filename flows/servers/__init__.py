"""What stands in front of every HTTP server of ours: Host and Origin checks, and the link that signs a person in.

May import: nothing of the project.
"""
