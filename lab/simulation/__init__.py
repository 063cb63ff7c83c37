"""Traffic played against a configuration in virtual time, without sockets: a discrete-event simulation."""
