"""How another process comes to have a group: it follows the owner, and may take its place."""
