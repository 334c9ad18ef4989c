"""How alike two pictures are to a network, and which of their patches make them so."""
