"""The parts are files of a user's, which only the commands import that are told to."""

collect_ignore_glob = ["parts/*"]
