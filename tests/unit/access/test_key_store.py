"""The store: what is written once holds, in the order of versions, for whoever asks and at any time."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from support.clock import ManualClock

from serve.access.grants import LOCAL
from serve.access.key_file import KeyTerms, TenantRow
from serve.access.key_record import IssuedKey, KeyRecord
from serve.access.key_ring import KeyRing
from serve.access.key_store import FILE_NAME, KeyStore
from serve.access.key_text import is_token
from serve.access.principal import Principal, Tenant
from serve.errors import InsufficientScopeError, InvalidApiKeyError, InvalidRequestError

RED = KeyTerms(tenant="red", name="ci")
OWN = Principal("k", Tenant("red"), frozenset({"infer", "keys:own"}))


Opened = Callable[..., KeyStore]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens stores that are closed when the test is over."""
    with ExitStack() as stack:
        yield lambda *how: stack.enter_context(closing(KeyStore(*how)))


def works(ring: KeyRing, token: str) -> bool:
    try:
        ring.authenticate({"authorization": f"Bearer {token}"})
    except InvalidApiKeyError:
        return False
    return True


def test_a_token_is_shown_once_and_stored_nowhere(tmp_path: Path, opened: Opened) -> None:
    store = opened(tmp_path)
    issued = store.create(RED)
    assert is_token(issued.token)
    store.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    secret = issued.token.split("_")[2].encode()
    assert issued.key.id.encode() in stored
    assert secret not in stored
    assert secret.decode() not in repr(issued) + str(issued)


def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    KeyStore(tmp_path / "state").close()
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    assert (tmp_path / "state" / FILE_NAME).stat().st_mode & 0o077 == 0


def test_what_one_process_writes_another_one_sees(tmp_path: Path, opened: Opened) -> None:
    reader, writer = opened(tmp_path), opened(tmp_path)
    before = reader.changes_since(0)
    issued = writer.create(RED)
    changes = reader.changes_since(before.version)
    assert (changes.whole, changes.keys) == (False, (issued.key,))
    assert reader.changes_since(changes.version) == type(changes)(changes.version)


def test_a_replica_that_knows_nothing_gets_everything_but_what_is_gone(opened: Opened) -> None:
    store = opened(None)
    gone, kept = store.create(RED), store.create(RED)
    store.revoke(gone.key.id)
    store.set_tenant("red", TenantRow(weight=2))
    store.set_tenant("blue", TenantRow())
    store.remove_tenant("blue")
    changes = store.changes_since(0)
    assert (changes.whole, changes.keys, changes.removed_keys) == (True, (kept.key,), ())
    assert (changes.tenants, changes.removed_tenants) == ((Tenant("red", 2.0),), ())


def test_a_store_that_begins_again_does_not_repeat_versions_it_has_told(opened: Opened) -> None:
    clock = ManualClock(1_800_000_000.0)
    first = opened(None, clock)
    first.create(RED)
    known = first.changes_since(0).version
    clock.now_s += 1
    second = opened(None, clock)
    second.create(RED)
    assert second.changes_since(known).whole


def test_a_store_from_a_backup_tells_everything_to_who_knows_more(opened: Opened) -> None:
    assert opened(None).changes_since(2**60).whole


def test_a_rotated_key_has_two_secrets_for_a_while(opened: Opened) -> None:
    clock = ManualClock(1_800_000_000.0)
    store, ring = opened(None, clock), KeyRing(stale_max_s=1e9, clock=clock)
    old = store.create(RED)
    new = store.rotate(old.key.id, grace_s=60)
    ring.adopt(store.changes_since(0))
    assert new.key.id == old.key.id
    assert works(ring, old.token)
    assert works(ring, new.token)
    clock.now_s += 60
    assert not works(ring, old.token)
    assert works(ring, new.token)


def test_after_a_second_rotation_the_first_secret_ends_at_once(opened: Opened) -> None:
    store, ring = opened(None), KeyRing(stale_max_s=60)
    first = store.create(RED)
    second = store.rotate(first.key.id)
    store.rotate(first.key.id)
    ring.adopt(store.changes_since(0))
    assert not works(ring, first.token)
    assert works(ring, second.token)


def test_who_sends_a_secret_that_two_rotations_have_ended_is_told_so(opened: Opened) -> None:
    store, ring = opened(None), KeyRing(stale_max_s=60)
    first = store.create(RED)
    store.rotate(first.key.id)
    store.rotate(first.key.id)
    third = store.rotate(first.key.id)
    ring.adopt(store.changes_since(0))
    assert len(third.key.hashes) == 3, "how often it was rotated"
    store.rotate(first.key.id, grace_s=0)
    second = store.create(RED)
    for _ in range(2):
        store.rotate(second.key.id)
    ring.adopt(store.changes_since(0))
    with pytest.raises(InvalidApiKeyError, match="another secret has taken its place"):
        ring.authenticate({"authorization": f"Bearer {second.token}"})


def test_a_key_that_does_not_exist_or_is_revoked_can_not_be_changed(opened: Opened) -> None:
    store = opened(None)
    issued = store.create(RED)
    store.revoke(issued.key.id)
    for key_id in (issued.key.id, "unknown"):
        with pytest.raises(InvalidRequestError):
            store.revoke(key_id)
        with pytest.raises(InvalidRequestError):
            store.rotate(key_id)
    assert store.keys() == ()


def test_a_tenants_admin_sees_and_changes_only_its_own_keys(opened: Opened) -> None:
    store = opened(None)
    red = store.create(RED)
    blue = store.create(KeyTerms(tenant="blue"))
    assert [key.id for key in store.keys(OWN)] == [red.key.id]
    for refused in (
        lambda: store.keys(OWN, "blue"),
        lambda: store.create(KeyTerms(tenant="blue"), OWN),
        lambda: store.rotate(blue.key.id, issuer=OWN),
        lambda: store.revoke(blue.key.id, OWN),
        lambda: store.set_tenant("red", TenantRow(weight=100), OWN),
        lambda: store.remove_tenant("red", OWN),
    ):
        with pytest.raises(InsufficientScopeError):
            refused()
    assert store.create(RED, OWN).key.tenant == "red"


def test_a_tenants_own_keys_make_a_thousand_and_an_operator_any_number(opened: Opened) -> None:
    store = opened(None)
    for _ in range(999):
        store.create(KeyTerms(tenant="red"), OWN)
    last = store.create(KeyTerms(tenant="red"), OWN)
    with pytest.raises(InvalidRequestError, match="1000 keys"):
        store.create(KeyTerms(tenant="red"), OWN)
    store.create(KeyTerms(tenant="red"))
    store.revoke(last.key.id)
    with pytest.raises(InvalidRequestError, match="1000 keys"):
        store.create(KeyTerms(tenant="red"), OWN)
    store.revoke(store.keys(OWN)[0].id)
    assert store.create(KeyTerms(tenant="red"), OWN).key in store.keys(OWN)


def test_a_new_secret_of_a_stronger_key_is_not_handed_out(opened: Opened) -> None:
    store = opened(None)
    admin = store.create(KeyTerms(tenant="red", scopes=("infer", "keys")))
    with pytest.raises(InsufficientScopeError):
        store.rotate(admin.key.id, issuer=OWN)


def test_what_was_refused_left_no_trace(opened: Opened) -> None:
    store = opened(None)
    admin = store.create(KeyTerms(tenant="red", scopes=("infer", "keys")))
    before = store.changes_since(0)
    with pytest.raises(InsufficientScopeError):
        store.rotate(admin.key.id, issuer=OWN)
    assert store.changes_since(0) == before


def test_a_tenant_with_keys_keeps_its_terms(opened: Opened) -> None:
    store = opened(None)
    store.set_tenant("red", TenantRow(weight=2))
    issued = store.create(RED)
    with pytest.raises(InvalidRequestError):
        store.remove_tenant("red")
    store.revoke(issued.key.id)
    store.remove_tenant("red")
    assert store.tenants() == ()
    with pytest.raises(InvalidRequestError):
        store.remove_tenant("red")


def test_the_day_of_a_keys_last_use_is_kept_without_being_a_change(opened: Opened) -> None:
    clock = ManualClock(1_800_000_000.0)
    store = opened(None, clock)
    issued = store.create(RED)
    version = store.changes_since(0).version
    store.mark_used([issued.key.id, "unknown"])
    [key] = store.keys()
    assert key.last_used_day == "2027-01-15"
    assert store.changes_since(version).keys == ()


def test_a_file_that_is_no_store_is_not_overwritten(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / FILE_NAME).write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(sqlite3.DatabaseError):
        opened(tmp_path)


class Replicas(RuleBasedStateMachine):
    """Two replicas hear of changes at odd moments, from a store that may begin again from nothing."""

    issued = Bundle("issued")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(1_800_000_000.0)
        self.store = KeyStore(None, self.clock)
        self.rings = [KeyRing(1e12, clock=self.clock) for _ in range(2)]
        self.valid: dict[str, KeyRecord] = {}
        self.tokens: set[str] = set()

    @rule(target=issued, tenant=st.sampled_from(["red", "blue"]))
    def create(self, tenant: str) -> IssuedKey:
        made = self.store.create(KeyTerms(tenant=tenant))
        self.valid[made.token] = made.key
        return made

    @rule(made=consumes(issued))
    def revoke(self, made: IssuedKey) -> None:
        if made.token in self.valid:
            self.store.revoke(made.key.id)
            del self.valid[made.token]
        self.tokens.add(made.token)

    @rule(name=st.sampled_from(["red", "blue"]), weight=st.integers(1, 9))
    def weigh(self, name: str, weight: int) -> None:
        self.store.set_tenant(name, TenantRow(weight=weight))

    @rule()
    def begin_again(self) -> None:
        self.clock.now_s += 1
        self.store.close()
        self.store = KeyStore(None, self.clock)
        self.tokens |= self.valid.keys()
        self.valid.clear()

    @rule(which=st.integers(0, 1))
    def merge(self, which: int) -> None:
        ring = self.rings[which]
        ring.adopt(self.store.changes_since(ring.version))
        for token in self.valid:
            principal = ring.authenticate({"x-api-key": token})
            terms = {tenant.name: tenant for tenant in self.store.tenants()}
            assert principal.tenant == terms.get(principal.tenant.name, Tenant(principal.tenant.name))
        assert not any(works(ring, token) for token in self.tokens)

    @invariant()
    def versions_are_the_stores(self) -> None:
        newest = self.store.changes_since(0).version
        assert all(ring.version <= newest for ring in self.rings)

    def teardown(self) -> None:
        self.store.close()


Replicas.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestReplicas = Replicas.TestCase


def no_database(path: Path) -> None:
    path.write_bytes(b"no database " * 1000)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def overwritten(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


def emptied(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100] + bytes(10_000))


def of_no_size(path: Path) -> None:
    path.write_bytes(b"")


def a_record_overwritten(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE keys SET record = x'ff00' WHERE NOT revoked")
        database.commit()


def terms_overwritten(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE tenants SET terms = cast('{}' AS blob)")
        database.commit()


def changed_by(statement: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database:
            database.executescript(statement)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        no_database,
        cut,
        overwritten,
        emptied,
        of_no_size,
        a_record_overwritten,
        terms_overwritten,
        changed_by("DROP INDEX keys_by_version; ALTER TABLE keys RENAME COLUMN version TO v"),
        changed_by("ALTER TABLE keys ADD COLUMN more TEXT NOT NULL DEFAULT ''"),
        changed_by("DROP TABLE tenants; CREATE TABLE tenants (a)"),
        changed_by("DROP TABLE tenants; CREATE VIEW tenants AS SELECT 1 AS name"),
    ],
)
def test_a_damaged_file_is_put_aside_and_no_change_is_lost_or_undone(
    tmp_path: Path, damage: Callable[[Path], None], opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    kept, ended = store.create(RED), store.create(RED)
    store.set_tenant("red", TenantRow(weight=3))
    store.revoke(ended.key.id)
    ring = KeyRing(60)
    ring.adopt(store.changes_since(0))
    store.close()
    path = tmp_path / FILE_NAME
    damage(path)
    damaged = path.read_bytes()
    with pytest.raises(sqlite3.Error):
        KeyStore(tmp_path)
    assert path.read_bytes() == damaged, "a command mends nothing: the file has an owner"
    with closing(KeyStore(tmp_path, mends=True)) as mended:
        assert [key.id for key in mended.keys(LOCAL)] == [kept.key.id]
        assert [tenant.weight for tenant in mended.tenants()] == [3]
        ring.adopt(mended.changes_since(ring.version))
        assert works(ring, kept.token)
        assert not works(ring, ended.token)
        fresh = KeyRing(60)
        fresh.adopt(mended.changes_since(0))
        assert works(fresh, kept.token)
        assert not works(fresh, ended.token)
        mended.create(RED)
    (aside,) = (each for each in tmp_path.glob(f"{FILE_NAME}.damaged-*Z"))
    assert aside.read_bytes() == damaged
    assert str(aside) in caplog.text
    assert {each.stat().st_mode & 0o77 for each in tmp_path.iterdir()} == {0}


def test_a_copy_that_could_not_be_made_is_gone_so_that_no_revoked_key_comes_back(
    tmp_path: Path, opened: Opened
) -> None:
    store = opened(tmp_path)
    ended = store.create(RED)
    (tmp_path / "access.copy.sqlite.draft").mkdir()
    store.revoke(ended.key.id)
    assert store.keys() == ()
    assert not (tmp_path / "access.copy.sqlite").exists()


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_file_is_said(tmp_path: Path, kind: str) -> None:
    (tmp_path / FILE_NAME).mkdir() if kind == "folder" else os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(OSError, match="not a regular file"):
        KeyStore(tmp_path, mends=True)


def test_a_copy_of_another_version_takes_no_files_place(tmp_path: Path, opened: Opened) -> None:
    opened(tmp_path).create(RED)
    later = changed_by("ALTER TABLE keys ADD COLUMN more TEXT NOT NULL DEFAULT ''")
    for name in (FILE_NAME, "access.copy.sqlite"):
        later(tmp_path / name)
    with pytest.raises(sqlite3.DatabaseError, match="not those of this version"):
        KeyStore(tmp_path, mends=True)
    assert not [*tmp_path.glob("*.damaged-*")]
