"""The rules by which sessions of dead brokers are ended early."""

from __future__ import annotations

from danube.cluster.suspects import (
    AGAIN_S,
    HINT_S,
    MOST_WITNESSES,
    Session,
    Suspect,
    Suspects,
    Verdict,
    verdict,
    witnesses,
)

NAMES = ("b1", "b2", "b3")
SESSIONS = {"b1": Session(1, 10), "b2": Session(4, 11), "b3": Session(1, 12)}


def seen(**changed: Session | None) -> tuple[Suspects, dict[str, Session]]:
    suspects = Suspects()
    sessions = {name: session for name, session in (SESSIONS | changed).items() if session is not None}
    suspects.see(sessions, NAMES, 0.0)
    return suspects, sessions


def test_the_coordinator_ends_the_session_of_a_suspect() -> None:
    suspects, sessions = seen()
    assert suspects.due("b1", "b1", 1.0) == []
    assert suspects.hint("b2", 4, sessions, 1.0)
    assert suspects.due("b1", "b1", 1.0) == [Suspect("b2", Session(4, 11))]


def test_another_broker_ends_the_coordinators_session_only() -> None:
    suspects, sessions = seen()
    suspects.hint("b2", 4, sessions, 1.0)
    assert suspects.due("b3", "b1", 1.0) == []
    assert suspects.due("b3", None, 1.0) == [], "one is about to be elected, perhaps this broker"
    assert suspects.due("b3", "b2", 1.0) == [Suspect("b2", Session(4, 11))]
    assert suspects.due("b3", "b3", 1.0) == [Suspect("b2", Session(4, 11))]


def test_a_broker_does_not_end_its_own_session() -> None:
    suspects, sessions = seen()
    suspects.hint("b2", 4, sessions, 1.0)
    assert suspects.due("b2", "b2", 1.0) == []


def test_a_hint_is_about_one_start_and_one_session() -> None:
    suspects, sessions = seen()
    assert not suspects.hint("b2", 3, sessions, 1.0), "of an earlier start"
    assert not suspects.hint("b7", 1, sessions, 1.0)
    assert suspects.hint("b2", 4, sessions, 1.0)
    assert suspects.hint("b3", 1, sessions, 1.0)
    sessions["b2"] = Session(5, 20)
    suspects.see(sessions, NAMES, 2.0)
    assert [each.name for each in suspects.due("b1", "b1", 2.0)] == ["b3"], "b2 has started again"
    del sessions["b3"]
    suspects.see(sessions, NAMES, 3.0)
    assert not suspects.names, "the session of b3 has ended"


def test_a_hint_is_worth_something_for_a_while() -> None:
    suspects, sessions = seen()
    suspects.hint("b2", 4, sessions, 1.0)
    assert suspects.due("b1", "b1", 0.9 + HINT_S)
    assert not suspects.due("b1", "b1", 1.0 + HINT_S)
    assert not suspects.names


def test_a_hint_that_was_wrong_is_dropped() -> None:
    suspects, sessions = seen()
    suspects.hint("b2", 4, sessions, 1.0)
    suspects.acquit("b2")
    suspects.acquit("b3")
    assert not suspects.due("b1", "b1", 1.0)


def test_a_session_that_was_opened_again_by_the_same_start_is_protected_for_a_minute() -> None:
    suspects, sessions = seen()
    del sessions["b2"]
    suspects.see(sessions, NAMES, 10.0)
    sessions["b2"] = Session(4, 20)
    suspects.see(sessions, NAMES, 11.0)
    suspects.hint("b2", 4, sessions, 12.0)
    assert suspects.due("b1", "b1", 12.0) == []
    suspects.see(sessions, NAMES, 13.0)  # nothing new
    suspects.hint("b2", 4, sessions, 10.9 + AGAIN_S)
    assert suspects.due("b1", "b1", 10.9 + AGAIN_S) == []
    assert suspects.due("b1", "b1", 11.0 + AGAIN_S)


def test_another_start_is_not_protected() -> None:
    suspects, sessions = seen()
    for revision in (20, 21):  # its session was opened again, and then it was killed
        sessions["b2"] = Session(4, revision)
        suspects.see(sessions, NAMES, 11.0)
    sessions["b2"] = Session(5, 30)
    suspects.see(sessions, NAMES, 12.0)
    suspects.hint("b2", 5, sessions, 13.0)
    assert suspects.due("b1", "b1", 13.0) == [Suspect("b2", Session(5, 30))]


def test_what_is_noted_of_brokers_that_do_not_exist_any_more_is_forgotten() -> None:
    suspects, sessions = seen()
    del sessions["b2"]
    suspects.see(sessions, ("b1", "b3"), 1.0)
    sessions["b2"] = Session(4, 40)
    suspects.see(sessions, NAMES, 2.0)
    suspects.hint("b2", 4, sessions, 3.0)
    assert suspects.due("b1", "b1", 3.0), "nothing says that this session was opened again"


def test_others_that_run_are_asked() -> None:
    assert witnesses("b1", "b2", ["b3", "b1", "b2", "b4"], ["b2", "b3"]) == ["b4", "b3"]
    assert witnesses("b1", "b2", ["b1", "b2"], ["b2"]) == []
    many = [f"b{number}" for number in range(1, 10)]
    assert len(witnesses("b1", "b2", many, [])) == MOST_WITNESSES


def test_one_that_reaches_the_suspect_acquits_it() -> None:
    assert verdict([False, True]) is Verdict.ACQUITTED
    assert verdict([False]) is Verdict.DEAD
    assert verdict([]) is Verdict.UNDECIDED, "the broker that asks may be the one that is cut off"
