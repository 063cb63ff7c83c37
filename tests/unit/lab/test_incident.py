"""The demo's last part: the field report's fault, straight to the engine and through specgate."""

from lab.demo import Incident, run_incident


async def test_no_client_of_specgate_sees_the_fault_and_its_price_is_told():
    incident = await run_incident()
    assert 10 < incident.straight.broken < 40
    assert (incident.guarded.broken, incident.guarded.errors) == (0, 0)
    assert incident.guarded.healed == incident.straight.broken
    assert incident.guarded.tokens > incident.straight.tokens
    assert incident.healed
    assert f"{incident.straight.broken} of 50" in "\n".join(incident.lines())


def test_a_fault_that_gets_through_is_not_healed():
    from lab.demo.incident import Arm

    faulty, clean = Arm(25, 0, 0, 3000), Arm(0, 0, 0, 3000)
    assert not Incident(straight=faulty, guarded=Arm(1, 24, 0, 4000)).healed
    assert not Incident(straight=faulty, guarded=Arm(0, 24, 1, 4000)).healed
    assert not Incident(straight=clean, guarded=clean).healed
