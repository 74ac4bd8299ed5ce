"""One provider process: Node, inboxes, lifecycle."""
