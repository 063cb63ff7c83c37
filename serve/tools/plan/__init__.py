"""How many replicas of which kind serve recorded traffic: split variants, played in virtual time."""
