"""The data of the passes: waited for, read, and looked through before it is trained."""
