import signal
import threading

import pytest

from attnmix.training import stopping
from attnmix.training.stopping import SIGNALS, Stopped, StopRequests


class Alone:
    num_processes = 1


@pytest.fixture(autouse=True)
def _heard():
    """Tests that run in the background may have been told to ignore them."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_are_noted_and_handlers_given_back(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    with StopRequests() as requests:
        assert requests.received == 0
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)  # the first counts
        assert requests.received == number
        assert requests.agreed(Alone(), True, False) == (number, 1, 0)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_handlers_are_given_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), StopRequests():
        1 / 0  # noqa: B018
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_ctrl_c_is_obeyed_at_once(monkeypatch):
    with StopRequests() as requests:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # torchrun's, of the same keystroke
        assert requests.received == signal.SIGINT
        monkeypatch.setattr(stopping, "INSISTS_AFTER", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequests() as requests:
            signal.raise_signal(signal.SIGHUP)
            assert requests.received == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_noted():
    found = []

    def inside():
        with StopRequests() as requests:
            found.append(requests.received)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [0]


def test_what_ended_a_run_says_its_exit_code():
    stopped = Stopped(signal.SIGTERM)
    assert isinstance(stopped, KeyboardInterrupt)
    assert (str(stopped), 128 + stopped.signal) == ("SIGTERM", 143)
