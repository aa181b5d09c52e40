"""Serve translations over HTTP."""

import socket
from dataclasses import replace

from relu_nmt.applications.serving import LOOPBACK
from relu_nmt.errors import ConfigError, needing, reporting
from relu_nmt.jobs.translate.settings import ServeSettings
from relu_nmt.jobs.translate.shared import length_note, load_translator, print_notes


def serve(settings: ServeSettings, *, progress: bool = True) -> None:
    """Serve until a signal. Answer the requests that have begun before the end."""
    # Import the web server only here, since it is an extra.
    with needing('the server needs the package {}: pip install "relu-nmt[serve]"'):
        from relu_nmt.applications.serving.app import make_app
        from relu_nmt.applications.serving.connections import run_server
    # Open the port before loading the model: an address in use is an error at once.
    address = settings.host, settings.port
    wrong = f"--host {settings.host} --port {settings.port}: cannot listen there"
    with reporting(wrong, ConfigError, (OSError, UnicodeError)):
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server(address, family=family)
    with listener:
        translator = load_translator(settings.model)
        windows = settings.windows(translator.max_doc_tokens)
        models = [translator]
        further_models = []
        for path in settings.further_models:
            # The names of the languages and the shortlist belong to the first model.
            options = replace(
                settings.model, path=path, source_lang=None, target_lang=None, shortlist=None
            )
            model = load_translator(options)
            models.append(model)
            further_models.append((model, settings.windows(model.max_doc_tokens)))
        # At a local address, accept only local host names by default.
        limits: ServeSettings = settings
        if settings.host in LOOPBACK and not settings.allowed_hosts:
            limits = replace(settings, allowed_hosts=LOOPBACK)
        app = make_app(translator, settings.search, windows, limits, further_models)
        split = translator.sources.splitter(settings.split_sentences, windows.max_doc_tokens)
        if split is not None:
            split("One. Two.")  # which gives a note if the library is missing
            print_notes(split.note)
        if progress:
            print_notes(length_note(settings.max_doc_tokens, translator.max_doc_tokens))
            pairs = []
            for model in models:
                pairs.append(f"{model.task.source_lang}-{model.task.target_lang}")
            host, port = listener.getsockname()[:2]
            if ":" in host:
                host = f"[{host}]"
            print_notes(f"{', '.join(pairs)} at http://{host}:{port}/ (Ctrl-C stops it)")
        run_server(app, listener, limits)
