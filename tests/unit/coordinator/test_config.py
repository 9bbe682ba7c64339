"""What the coordinator's settings refuse."""

import pytest

from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_shared.settings.config import SettingError


@pytest.mark.parametrize("url", ["", "http://prometheus:9090", "https://x.example/prometheus/"])
def test_the_page_of_prometheus_is_an_address(url: str) -> None:
    assert CoordinatorSettings(prometheus_url=url).prometheus_url == url


@pytest.mark.parametrize("url", ["prometheus:9090", "javascript:alert(1)", "http://", "//x"])
def test_what_is_no_page_is_refused(url: str) -> None:
    with pytest.raises(SettingError, match="an address that begins with http"):
        CoordinatorSettings(prometheus_url=url)
