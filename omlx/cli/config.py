"""Files of settings: `omlx config`, for all models, a model, a profile; `omlx keys`: API keys."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from difflib import get_close_matches

from omlx.catalog import sentence
from omlx.cli import add_actions
from omlx.cli.arguments import configured, local_catalog
from omlx.cli.output import columns, memory_size, warn
from omlx.cli.serve.address import find_server
from omlx.errors import ConfigError, NotFound
from omlx.models.catalog.package import usable_package
from omlx.models.catalog.reference import check_draft
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.keys import EVERY_MODEL, KeyFile, NamedKey
from omlx.settings.layers import Resolution, Source, parse, to_json
from omlx.settings.schema import Setting, Value, table
from omlx.settings.store import Owner
from omlx.settings.types import Form, size_text

_HIDDEN = "********"


def config_arguments(parser: ArgumentParser) -> None:
    actions = {"get": _get, "set": _set, "unset": _unset, "list": _list, "path": _path}
    for name, command in add_actions(parser, "config", actions):
        if name in ("get", "set", "unset"):
            command.add_argument("name", metavar="NAME")
        if name == "set":
            command.add_argument("value", metavar="VALUE")
        if name == "list":
            text = sentence("cli.models.json", {})
            command.add_argument("--json", action="store_true", help=text)
        command.add_argument("--model", metavar="ID", help=sentence("cli.config.model", {}))
        command.add_argument("--profile", metavar="NAME", help=sentence("cli.config.profile", {}))
        command.add_argument("--home", metavar="DIR", help=table()["home"].help)


def config(arguments: Namespace) -> int:
    if arguments.profile is not None and arguments.model is None:
        raise ConfigError("config.profile_model")
    arguments.action(arguments, configured(arguments))
    return 0


def _get(arguments: Namespace, live: LiveConfiguration) -> None:
    row = _row(arguments.name)
    value = _resolution(arguments, live)[row.name].value
    sys.stdout.write(f"{_shown(row, value)}\n")


def _set(arguments: Namespace, live: LiveConfiguration) -> None:
    row = _row(arguments.name)
    value = parse(row, arguments.value, row.name)
    owner = Owner(_model(arguments, live, new=True), arguments.profile)
    if owner.profile is not None and owner.model is not None:
        local_catalog(live).check_profile(owner.model, owner.profile)
    if row.name in ("alias", "draft_model"):
        _check_name(row.name, str(value), owner.model, live)
    live.patch({row.name: value}, *owner)
    stored_in = Source(owner.scope.value)
    effective = _resolution(arguments, live)[row.name]
    if effective.source is not stored_in:
        shown, source = _shown(row, effective.value), effective.source.value
        warn("cli.config.overridden", name=row.name, value=shown, source=source)
    _report_doubts(row, value, owner.model, live)
    _report_restart(row, live)


def _report_doubts(row: Setting, value: Value, model: str | None, live: LiveConfiguration) -> None:
    """Report the dashboard's warning: a missing model, a limit above the machine."""
    from omlx.admin.settings.view import (  # noqa: PLC0415 — imports mlx, which is slow
        SettingWarnings,
    )

    catalog = local_catalog(live)
    entry = None if model is None else catalog.registry.get(model)
    warning = SettingWarnings(catalog).of(row.name, value, entry)
    if warning is not None:
        warn("cli.config.doubt", warning=warning.message)


def _check_name(setting: str, name: str, model: str | None, live: LiveConfiguration) -> None:
    """Check an alias or draft against the local models. Raises ConfigError or BadRequest."""
    catalog, entry = local_catalog(live), None
    if setting == "draft_model":
        if model is not None and model in catalog.registry:
            entry = catalog.registry.get_usable(model)
        check_draft(name, entry, catalog.registry)
    elif model is not None:
        catalog.check_alias(name, model)


def _unset(arguments: Namespace, live: LiveConfiguration) -> None:
    row = _row(arguments.name)
    live.patch({row.name: None}, *_owner(arguments, live))
    _report_restart(row, live)


def _report_restart(row: Setting, live: LiveConfiguration) -> None:
    """Report that a running server applies this setting only after a restart."""
    if row.applies_live:
        return
    address = find_server(live.current.resolve().settings.home)
    if address is not None:
        warn("cli.config.restart", url=address)


def _list(arguments: Namespace, live: LiveConfiguration) -> None:
    resolution = _resolution(arguments, live)
    owner, rows = _owner(arguments, live), list(table().values())
    if owner.model is not None:
        rows = [row for row in rows if row.allowed_in(owner.scope)]
    record, cells = {}, []
    for row in rows:
        value, source = resolution[row.name].value, resolution[row.name].source.value
        secret = row.form is Form.SECRET and value is not None
        record[row.name] = {"value": _HIDDEN if secret else to_json(value), "source": source}
        shown = _shown(row, value)
        if row.form is Form.SIZE and isinstance(value, int) and value:
            shown = memory_size(value)  # with a unit, for people
        cells.append((row.name, shown, sentence(f"ui.source.{source}", {})))
    if arguments.json:
        sys.stdout.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        return
    head = [sentence(f"cli.config.column.{name}", {}) for name in ("setting", "value", "source")]
    sys.stdout.write(columns(cells, head))


def _path(arguments: Namespace, live: LiveConfiguration) -> None:
    assert live.store is not None
    sys.stdout.write(f"{live.store.path(arguments.model)}\n")


def _resolution(arguments: Namespace, live: LiveConfiguration) -> Resolution:
    """Resolve every setting; for a local model, with its package's declarations."""
    model, profile = _owner(arguments, live)
    if model is None:
        return live.current.resolve()
    registry = local_catalog(live).registry
    if model not in registry:
        return live.current.resolve(model, profile=profile)
    package = usable_package(registry.get_usable(model).path)
    return live.current.resolve(model, package.layer, profile=profile)


def _owner(arguments: Namespace, live: LiveConfiguration) -> Owner:
    """Return the owner named by the arguments. Raises NotFound, also for a missing profile."""
    model, profile = _model(arguments, live), arguments.profile
    if model is None or profile is None:
        return Owner(model)
    known = live.current.stored.profiles(model)
    if profile not in known:
        ids = ", ".join([model, *(f"{model}:{name}" for name in known)])
        raise NotFound("model.no_profile", model=f"{model}:{profile}", ids=ids)
    return Owner(model, profile)


def _model(arguments: Namespace, live: LiveConfiguration, *, new: bool = False) -> str | None:
    """Return the id of the model `--model`, usable or not.

    Models missing from this machine are accepted if they have stored settings, unless `new` ones
    are to be stored.
    """
    if arguments.model is None:
        return None
    try:
        return local_catalog(live).registry.get(arguments.model).id
    except NotFound:
        if new or arguments.model not in live.current.stored.models:
            raise
        return str(arguments.model)


def _shown(row: Setting, value: Value) -> str:
    """Return a value in the form of `omlx config set`."""
    if value is None or value == ():
        return ""
    if row.form is Form.SIZE and isinstance(value, int):
        return size_text(value) if value else "off"
    if row.form is Form.SECRET:
        return _HIDDEN
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def _row(name: str) -> Setting:
    """Return the setting `name`, written with dashes or underscores. Raises ConfigError."""
    row = table().get(name.replace("-", "_"))
    if row is None:
        similar = get_close_matches(name.replace("-", "_"), table(), n=1)
        if similar:
            raise ConfigError("config.similar", name=name, similar=similar[0])
        raise ConfigError("config.unknown", name=name)
    return row


def keys_arguments(parser: ArgumentParser) -> None:
    actions = {"add": _add_key, "list": _list_keys, "revoke": _revoke_key}
    for name, command in add_actions(parser, "keys", actions):
        if name != "list":
            command.add_argument("name", metavar="NAME", help=sentence("cli.keys.name", {}))
        if name == "add":
            models, rate = sentence("cli.keys.models", {}), sentence("cli.keys.rate", {})
            command.add_argument(
                "--models", metavar="PATTERN", nargs="+", default=[EVERY_MODEL], help=models
            )
            command.add_argument("--rate", metavar="N", type=int, help=rate)
        if name == "list":
            text = sentence("cli.models.json", {})
            command.add_argument("--json", action="store_true", help=text)
        command.add_argument("--home", metavar="DIR", help=table()["home"].help)


def keys(arguments: Namespace) -> int:
    configuration = configured(arguments)
    file = KeyFile(configuration.current.resolve().settings.home)
    arguments.action(arguments, file, configuration)
    return 0


def _add_key(arguments: Namespace, file: KeyFile, configuration: LiveConfiguration) -> None:
    """Print the new key alone on standard output, all else on standard error."""
    # The first key closes a server that was open to all.
    opened = configuration.current.resolve().settings.api_key is None and not file.path.exists()
    unmatched = local_catalog(configuration).unmatched(arguments.models)
    key = file.add(arguments.name, arguments.models, arguments.rate)
    for pattern in unmatched:
        warn("keys.no_model", pattern=pattern)
    if opened:
        warn("cli.keys.closed")
    warn("cli.keys.once")
    sys.stdout.write(f"{key}\n")


def _list_keys(arguments: Namespace, file: KeyFile, configuration: LiveConfiguration) -> None:
    keys = file.read()
    if arguments.json:
        records = [key.record() for key in keys]
        sys.stdout.write(json.dumps(records, indent=2, ensure_ascii=False) + "\n")
    elif keys:
        names = ("name", "key", "models", "rate", "created")
        head = [sentence(f"cli.keys.column.{name}", {}) for name in names]
        sys.stdout.write(columns([*map(_key_row, keys)], head))
    else:
        warn("cli.keys.none")


def _revoke_key(arguments: Namespace, file: KeyFile, configuration: LiveConfiguration) -> None:
    file.revoke(arguments.name)
    warn("cli.keys.revoked", name=arguments.name)


def _key_row(key: NamedKey) -> tuple[str, ...]:
    rate = "-" if key.requests_per_minute is None else str(key.requests_per_minute)
    day = key.created.date().isoformat()
    return key.name, f"…{key.ending}", " ".join(key.models), rate, day
