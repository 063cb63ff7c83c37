"""Has every pool copy identifiers now and then, in requests of the platform's own."""
