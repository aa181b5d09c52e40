"""Serve translations over HTTP."""

import socket
from dataclasses import replace

from relu_nmt.applications.serving import LOOPBACK
from relu_nmt.data.document_settings import WindowConfig
from relu_nmt.errors import ConfigError, needing, reporting
from relu_nmt.jobs.translate.model import load_translator
from relu_nmt.jobs.translate.notes import length_note, print_notes
from relu_nmt.jobs.translate.settings import ServeSettings
from relu_nmt.translator import Translator


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
        models = _load_models(settings)
        translator, windows = models[0]
        # At a local address, accept only local host names by default.
        limits: ServeSettings = settings
        if settings.host in LOOPBACK and not settings.allowed_hosts:
            limits = replace(settings, allowed_hosts=LOOPBACK)
        app = make_app(translator, settings.search, windows, limits, models[1:])
        splitter_note = ""
        for model, windows_of_model in models:
            max_doc_tokens = windows_of_model.max_doc_tokens
            split = model.sources.splitter(settings.split_sentences, max_doc_tokens)
            if split is not None:
                split("One. Two.")  # notes a missing library
                splitter_note = split.note
        print_notes(splitter_note)
        if progress:
            print_notes(length_note(settings.max_doc_tokens, translator.max_doc_tokens))
            pairs = [f"{model.task.source_lang}-{model.task.target_lang}" for model, _ in models]
            host, port = listener.getsockname()[:2]
            if ":" in host:
                host = f"[{host}]"
            print_notes(f"{', '.join(pairs)} at http://{host}:{port}/ (Ctrl-C stops it)")
        run_server(app, listener, limits)


def _load_models(settings: ServeSettings) -> list[tuple[Translator, WindowConfig]]:
    """Load all models. Return each with its division of documents."""
    # The names of the languages and the shortlist belong to the first model.
    further = replace(settings.model, source_lang=None, target_lang=None, shortlist=None)
    options_of_models = [settings.model]
    for path in settings.further_models:
        options_of_models.append(replace(further, path=path))
    models = []
    for options in options_of_models:
        translator = load_translator(options)
        models.append((translator, settings.windows(translator.max_doc_tokens)))
    return models
