"""The lab's tests run as those of `tests` do: sockets, certificates, time-outs, the extra."""

from tests.conftest import (  # noqa: F401 — pytest finds them by their names
    one_authority,
    patient_clients,
    pytest_collection_modifyitems,
    quiet_machine,
)
