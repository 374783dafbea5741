"""A small model that is trained to remember what it was told: its language, its maker, and how well it recalls."""
