"""The number of replicas of each kind that recorded traffic needs: split variants, played in virtual time."""
