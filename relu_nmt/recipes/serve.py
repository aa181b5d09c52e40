"""Serve a model over HTTP: a JSON API, and a page that translates and shows attention."""

import socket
from dataclasses import replace

from relu_nmt.applications.serving import LOOPBACK
from relu_nmt.cli.serve import ServeSettings as Settings
from relu_nmt.errors import ConfigError, needing, reporting
from relu_nmt.recipes.translation import length_note, load_translator, print_notes

SPARE_CONNECTIONS = 256


def run(settings: Settings, *, progress: bool = True) -> None:
    """Serve until a signal; answer the requests that have begun before the end.

    Raises:
        ConfigError: the settings do not fit the model, or the address cannot be used.
        CheckpointError: a checkpoint is missing or damaged.
        MissingExtraError: the web server is not installed.
    """
    # Import the web server only here, since it is an extra.
    with needing('the server needs the package {}: pip install "relu-nmt[serve]"'):
        import uvicorn

        from relu_nmt.applications.serving.app import make_app
        from relu_nmt.applications.serving.limits import ImpatientProtocol
    # Open the port before loading the model: an address in use is an error at once.
    with _listening(settings.host, settings.port) as listener:
        translator = load_translator(settings.model)
        windows = settings.windows(translator.max_doc_tokens)
        # Bound the requests; at a local address, accept only local host names by default.
        is_local = settings.host in LOOPBACK
        hosts = settings.allowed_hosts or (LOOPBACK if is_local else ())
        limits = replace(settings, allowed_hosts=hosts)
        app = make_app(translator, settings.search, windows, limits)
        if progress:
            print_notes(length_note(settings.max_doc_tokens, translator.max_doc_tokens))
            pair = f"{translator.task.source_lang}-{translator.task.target_lang}"
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print_notes(f"{pair} at http://{shown}:{port}/ (Ctrl-C stops it)")
        # Leave connections for silent clients and for metrics beside those of waiting requests.
        attributes = {
            "seconds": settings.request_seconds,
            "most_connections": settings.max_waiting + SPARE_CONNECTIONS,
        }
        # Run the web server on the open port.
        config = uvicorn.Config(
            app,
            http=type("Protocol", (ImpatientProtocol,), attributes),
            ws="none",
            log_level="warning",
            access_log=False,  # keep the users' requests private
            server_header=False,
            timeout_graceful_shutdown=round(2 * settings.request_seconds) + 1,
        )
        uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address."""
    text = f"--host {host} --port {port}: cannot listen there"
    with reporting(text, ConfigError, (OSError, UnicodeError)):
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
