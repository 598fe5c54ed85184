"""The server as a service of the user's login session: launchd on macOS, systemd on Linux."""
