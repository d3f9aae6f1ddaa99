"""What a script's optimizer is to the servers: rules, options, states."""
