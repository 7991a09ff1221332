"""Our engine under JetStream 0.2.2 itself, where the package can be fetched."""

import pytest

from tests.jetstream import conformance


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    path = tmp_path_factory.mktemp("site")
    try:
        conformance.install(path)
    except conformance.CannotInstallError as error:
        pytest.skip(f"cannot install {conformance.PACKAGES[0]}: {error}")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("check", conformance.CHECKS)
def test_jetstream_passes(site, check):
    problem = conformance.run(check, site)
    assert problem is None, problem


@pytest.mark.slow
def test_a_check_that_dies_is_reported_with_its_output(site):
    problem = conformance.run("no_such_check", site)
    assert problem is not None
    assert problem.startswith("exit code 1")
    assert "KeyError: 'no_such_check'" in problem
