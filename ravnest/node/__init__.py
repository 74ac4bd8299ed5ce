"""One provider process: Node, its links, its pipeline and its lifecycle."""
