import pytest

pytest.register_assert_rewrite("tests.admin.browser.checks", "tests.admin.browser.chromium")
