"""The registry's atomic writes, in Redis's Lua.

Every script of the coordinator gets the keys of one run of a job in the order of
``Keys.of_run``. Those of members get the keys that members write, in the order of
``Keys.of_member``, and among their arguments the names of others that they read: Redis takes
each key of a script for one that it writes, and members may not write what the coordinator
decides.

Each refuses a writer that is not the newest: one of an older run (``epoch``), or one whose
role and index a newer process has (``fenced``). A writer that is newer than what Redis
knows restores it, because then Redis was restarted empty or with old data; one that is newer by
more than old data explain is refused, too (``unissued``).
"""

from dataclasses import dataclass

__all__ = [
    "ARRIVE",
    "AUDIT",
    "BEAT",
    "CLAIM",
    "EVICT",
    "FAIL",
    "KNOWN",
    "LOSE",
    "PUT",
    "REGISTER",
    "RELEASE",
    "RESIGN",
    "RESTORE",
    "SCRIPTS",
    "TICK",
    "VOUCH",
    "WITHDRAW",
    "WRITE_JOB",
    "WRITE_ORDERS",
    "Keys",
]


KNOWN = "known/"
"""What names in ``facts`` begin with under which members say what they know of a run."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of a job's keys.

    ``epoch`` counts the runs of the job, ``coordinator`` is the coordinator's lease, ``lives``
    the incarnation counters, ``audit`` what operators changed, ``launchers`` who runs it; the
    other keys belong to one run.
    """

    job: str

    def of_job(self, name: str) -> str:
        """Return a key that outlives a run."""
        return f"paramfleet:{self.job}:{name}"

    def of_run(self, epoch: int, *more: str) -> list[str]:
        """Return the keys a coordinator's script gets, and after them those of ``more``."""
        own = ("job", "members", "beats", "ends", "facts", "released", "open", "failure")
        job = [self.of_job(name) for name in ("epoch", "coordinator", "lives")]
        runs = [self._of_run(epoch, name) for name in (*own, *more)]
        return [*job, *runs[:7], self.of_job("launchers"), *runs[7:]]

    def of_member(self, epoch: int, *more: str) -> list[str]:
        """Return the keys a member's script gets, and after them those of ``more``."""
        own = ("members", "beats", "ends", "facts", "failure", *more)
        job = [self.of_job(name) for name in ("epoch", "lives")]
        return [*job, *(self._of_run(epoch, name) for name in own)]

    def of_decisions(self, epoch: int) -> str:
        """Return the key of what the coordinator decides about a run."""
        return self._of_run(epoch, "job")

    def of_failure(self, epoch: int) -> str:
        """Return the key of the failure that a member has told of."""
        return self._of_run(epoch, "failure")

    def _of_run(self, epoch: int, name: str) -> str:
        return f"paramfleet:{self.job}:{epoch}:{name}"


_NAMES = """
local EPOCH, COORDINATOR, LIVES, JOB, MEMBERS, BEATS, ENDS, FACTS, RELEASED, OPEN,
  LAUNCHERS, FAILURE, EXTRA =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10],
  KEYS[11], KEYS[12], KEYS[13]
"""

_MEMBERS_NAMES = """
local EPOCH, LIVES, MEMBERS, BEATS, ENDS, FACTS, FAILURE, EXTRA =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local COORDINATOR
"""

_LAUNCHERS_NAMES = """
local LAUNCHERS = KEYS[1]
"""

_RIVAL = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local function rival(launch, part, nonce)
  local all = redis.call('HGETALL', LAUNCHERS)
  for i = 1, #all, 2 do
    local cut = string.find(all[i + 1], ' ', 1, true)
    local left_ms = tonumber(string.sub(all[i + 1], 1, cut - 1)) - now_ms
    local text = string.sub(all[i + 1], cut + 1)
    local other = cjson.decode(text)
    local same = all[i] == part and other.nonce ~= nonce
    if left_ms > 0 and (other.launch ~= launch or same) then return text, left_ms end
  end
end
"""
"""Finds a launcher with a valid lease, of another launch or of the same part of this one.
``launchers`` holds for each part until when, in ms of Redis's own clock, and its voucher behind
a space."""

_MOST_NEWER = 1000
"""Lives of one place that old data may lack."""

_MOST_INCARNATIONS = 1 << 31
"""The newest that is restored where Redis knows none."""

_CHECK = (
    f"local MOST_NEWER, MOST = {_MOST_NEWER}, {_MOST_INCARNATIONS}"
    """
local epoch, field, incarnation = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local retention = ARGV[4]
local newest_epoch = tonumber(redis.call('GET', EPOCH) or '0')
if newest_epoch > epoch then return {'epoch', newest_epoch} end
local newest = tonumber(redis.call('HGET', LIVES, field) or '0')
if newest > incarnation then return {'fenced', newest} end
local most = newest > 0 and newest + MOST_NEWER or MOST
if incarnation > most then return {'unissued', newest} end
if newest_epoch < epoch then redis.call('SET', EPOCH, epoch) end
if newest < incarnation then redis.call('HSET', LIVES, field, incarnation) end
for _, key in ipairs(KEYS) do
  if key ~= COORDINATOR then redis.call('PEXPIRE', key, retention) end
end
"""
)
"""Arguments 1 to 4 of every fenced script: epoch, ``role:index``, incarnation, ms to keep."""

_FENCE = _NAMES + _CHECK
_MEMBERS_FENCE = _MEMBERS_NAMES + _CHECK

_TAKE_FAILURE = """
local told = redis.call('HGET', FAILURE, 'failure')
if told and redis.call('HGET', JOB, 'state') ~= 'finished'
  and redis.call('HSETNX', JOB, 'failure', told) == 1 then
  redis.call('HSET', JOB, 'state', 'failed')
end
"""
"""The coordinator writes that the job has failed, as a member has told."""

BEAT = (
    _MEMBERS_FENCE
    + """
redis.call('HSET', MEMBERS, field, ARGV[5])
local beats = redis.call('HINCRBY', BEATS, field, 1)
if ARGV[6] ~= '' and redis.call('HGET', ENDS, field) ~= 'left' then
  redis.call('HSET', ENDS, field, ARGV[6])
end
if ARGV[7] ~= '' then redis.call('HSET', FACTS, field, ARGV[7]) end
return {'ok', redis.call('HGETALL', ARGV[8]), redis.call('EXISTS', ARGV[9]),
  redis.call('HGET', FAILURE, 'failure'), beats}
"""
)
"""A member's heartbeat. 5: its record, 6: how its part ended or empty, 7: facts or empty, 8:
the key of the job's decisions, 9: that of the coordinator."""

FAIL = (
    _MEMBERS_FENCE
    + """
local JOB = ARGV[6]
if ARGV[7] and redis.call('HGET', JOB, 'launch') ~= ARGV[7] then return {'ok'} end
if redis.call('HGET', JOB, 'state') ~= 'finished' then
  redis.call('HSETNX', FAILURE, 'failure', ARGV[5])
  redis.call('PEXPIRE', FAILURE, retention)
end
return {'ok'}
"""
)
"""A member ends the job; the first failure stays. 5: the failure, 6: the key of the job's
decisions, 7: the launch that the run must be of, if it matters."""

LOSE = (
    _MEMBERS_FENCE
    + """
local text = redis.call('HGET', MEMBERS, ARGV[5])
if not text then return {'ok'} end
local member, ended = cjson.decode(text), redis.call('HGET', ENDS, ARGV[5]) or ''
if ARGV[8] ~= '' and member.launch ~= ARGV[8] then return {'ok'} end
local becomes_final = string.sub(ARGV[7], 1, 5) == 'gone:' and string.sub(ended, 1, 4) == 'lost'
if becomes_final or (ended == '' and member.pid == tonumber(ARGV[6])) then
  redis.call('HSET', ENDS, ARGV[5], ARGV[7])
end
return {'ok'}
"""
)
"""A launcher saw a worker's process end, unless another has its place or it said how it ended
itself. 5: ``role:index``, 6: the process's id, 7: its end, 8: its launch, empty if it doesn't
matter. Who is ``gone`` may have died before it joined: then its place is a lost process's."""

PUT = (
    _MEMBERS_FENCE
    + """
redis.call('HSET', EXTRA, ARGV[6], ARGV[7])
redis.call('PEXPIRE', EXTRA, ARGV[5])
return {'ok'}
"""
)
"""A worker's payload of a gather. 5: ms to keep, 6: rank, 7: payload."""

RESTORE = (
    _MEMBERS_FENCE
    + f"""
redis.call('HSET', FACTS, '{KNOWN}' .. field, ARGV[5])
redis.call('PEXPIRE', FACTS, retention)
return {{'ok'}}
"""
)
"""A member says what it knows of a run whose decisions Redis has lost: it may not write these.
5: what it knows, as JSON."""

CLAIM = (
    _NAMES
    + _RIVAL
    + """
if ARGV[3] ~= '' then
  local text = rival(ARGV[3], '', '')
  if text then return {'launch', text} end
end
if redis.call('EXISTS', COORDINATOR) == 1 then
  return {'taken', redis.call('HGET', COORDINATOR, 'record')}
end
local incarnation = redis.call('HINCRBY', LIVES, 'coordinator:0', 1)
redis.call('HSET', COORDINATOR, 'incarnation', incarnation, 'record', ARGV[2])
redis.call('PEXPIRE', COORDINATOR, ARGV[1])
return {'ok', incarnation}
"""
)
"""A coordinator takes the free lease. 1: ms of its lease, 2: its record, 3: its launch: while a
launcher of another one has a valid lease, the job is that one's."""

VOUCH = (
    _LAUNCHERS_NAMES
    + _RIVAL
    + """
local COORDINATOR = ARGV[8]
local launch, part, nonce = ARGV[1], ARGV[2], ARGV[3]
local text, left_ms = rival(launch, part, nonce)
if text then return {'launch', text, left_ms} end
local coordinator = redis.call('HGET', COORDINATOR, 'record')
if ARGV[7] == '1' and coordinator and cjson.decode(coordinator).launch ~= launch then
  return {'coordinator', coordinator, redis.call('PTTL', COORDINATOR)}
end
redis.call('HSET', LAUNCHERS, part, string.format('%.0f ', now_ms + ARGV[4]) .. ARGV[5])
redis.call('PEXPIRE', LAUNCHERS, ARGV[6])
return {'ok'}
"""
)
"""A launcher says which of its processes live. 1: launch, 2: its part, 3: its nonce, 4: ms of
its lease, 5: the voucher, 6: ms to keep, 7: 1 to start, when a coordinator of another launch
refuses it as well, 8: the coordinator's key. What refuses it comes with the ms that its lease
still runs."""

WITHDRAW = (
    _LAUNCHERS_NAMES
    + """
local held = redis.call('HGET', LAUNCHERS, ARGV[1])
if held and cjson.decode(string.match(held, ' (.*)')).nonce == ARGV[2] then
  redis.call('HDEL', LAUNCHERS, ARGV[1])
end
return {'ok'}
"""
)
"""A launcher has ended. 1: its part, 2: its nonce."""

_RENEW = """
redis.call('HSET', COORDINATOR, 'incarnation', incarnation, 'record', ARGV[6])
redis.call('PEXPIRE', COORDINATOR, ARGV[5])
"""

TICK = (
    _FENCE
    + _RENEW
    + _TAKE_FAILURE
    + """
return {'ok', redis.call('HGETALL', JOB), redis.call('HGETALL', MEMBERS),
  redis.call('HGETALL', BEATS), redis.call('HGETALL', ENDS), redis.call('HGETALL', FACTS),
  redis.call('HGETALL', RELEASED), redis.call('HGETALL', LAUNCHERS)}
"""
)
"""The coordinator renews its lease (5: ms of its lease, 6: its record) and reads the run, which
has failed if a member has told so."""

REGISTER = (
    _FENCE
    + """
local key, member = ARGV[5], cjson.decode(ARGV[6])
local old = redis.call('HGET', MEMBERS, key)
if old then
  local before = cjson.decode(old)
  if before.nonce == member.nonce then return {'ok', before.incarnation} end
end
local life = tonumber(redis.call('HGET', LIVES, key) or '0')
local incarnation = math.max(life, tonumber(ARGV[7])) + 1
redis.call('HSET', LIVES, key, incarnation)
local said = string.format('"incarnation": %d', incarnation)
-- not encoded anew: that would round whole numbers of more than 14 digits, as a run's
redis.call('HSET', MEMBERS, key, (string.gsub(ARGV[6], '"incarnation": %d+', said, 1)))
redis.call('HDEL', BEATS, key)
redis.call('HDEL', ENDS, key)
redis.call('HDEL', FACTS, key)
return {'ok', incarnation}
"""
)
"""The coordinator admits a member. 5: ``role:index``, 6: its record without incarnation, 7: the
last incarnation that the coordinator knows to be taken."""

EVICT = (
    _FENCE
    + """
local key, gone = ARGV[5], tonumber(ARGV[6])
local life = tonumber(redis.call('HGET', LIVES, key) or '0')
if life <= gone then redis.call('HSET', LIVES, key, gone + 1) end
local member = redis.call('HGET', MEMBERS, key)
if member and cjson.decode(member).incarnation > gone then return {'ok'} end
redis.call('HSET', ENDS, key, ARGV[7])
for i = 13, #KEYS do redis.call('SREM', KEYS[i], ARGV[8]) end
return {'ok'}
"""
)
"""The coordinator goes on without a worker: what its process writes from now on is refused,
and it stands at no barrier. 5: ``role:index``, 6: its incarnation, 7: its end, 8: its rank; the
keys behind are those of open barriers."""

_VERSION = """
local function version(orders) return orders and cjson.decode(orders).version or 0 end
local stored = redis.call('HGET', JOB, 'orders')
"""

WRITE_JOB = (
    _FENCE
    + _TAKE_FAILURE
    + _VERSION
    + """
local state = redis.call('HGET', JOB, 'state')
local ended = state == 'finished' or state == 'failed'
for i = 5, #ARGV, 2 do
  if ARGV[i] == 'failure' then
    redis.call('HSETNX', JOB, 'failure', ARGV[i + 1])
  elseif not (ended and ARGV[i] == 'state')
    and not (ARGV[i] == 'orders' and version(ARGV[i + 1]) <= version(stored)) then
    redis.call('HSET', JOB, ARGV[i], ARGV[i + 1])
  end
end
return {'ok', redis.call('HGETALL', JOB)}
"""
)
"""The coordinator writes decisions (5: name, 6: value, ...); how a run ended never changes, and
orders only to newer ones."""

WRITE_ORDERS = (
    _FENCE
    + _VERSION
    + """
if version(stored) > tonumber(ARGV[5]) then return {'newer', stored} end
redis.call('HSET', JOB, 'orders', ARGV[6])
return {'ok'}
"""
)
"""The coordinator writes an operator's orders, unless orders newer than those that they change
are stored. 5: the version that they change, 6: the orders."""

AUDIT = (
    _FENCE
    + """
local last = redis.call('LINDEX', EXTRA, -1)
local known = last and cjson.decode(last).number or 0
if known < tonumber(ARGV[7]) then return {'gap'} end
for i = 8, #ARGV do
  if cjson.decode(ARGV[i]).number > known then redis.call('RPUSH', EXTRA, ARGV[i]) end
end
redis.call('LTRIM', EXTRA, -tonumber(ARGV[6]), -1)
redis.call('PEXPIRE', EXTRA, ARGV[5])
return {'ok'}
"""
)
"""The coordinator keeps audit entries, each once. 5: ms to keep, 6: entries that are kept, 7:
the number that must be there before them, 8 and on: entries."""

ARRIVE = (
    _FENCE
    + """
redis.call('SADD', OPEN, ARGV[5])
redis.call('SADD', EXTRA, ARGV[6])
redis.call('PEXPIRE', OPEN, retention)
redis.call('PEXPIRE', EXTRA, retention)
return {'ok'}
"""
)
"""A worker stands at a barrier. 5: ``generation:name``, 6: rank."""

RELEASE = (
    _FENCE
    + """
redis.call('HSET', RELEASED, ARGV[5], ARGV[6])
redis.call('DEL', EXTRA)
redis.call('SREM', OPEN, ARGV[7])
return {'ok'}
"""
)
"""A barrier lets its workers go. 5: name, 6: the release, 7: ``generation:name``."""

RESIGN = (
    _FENCE
    + """
redis.call('DEL', COORDINATOR)
return {'ok'}
"""
)
"""The coordinator gives its lease back."""

SCRIPTS = (
    ARRIVE, AUDIT, BEAT, CLAIM, EVICT, FAIL, LOSE, PUT, REGISTER, RELEASE, RESIGN, RESTORE,
    TICK, VOUCH, WITHDRAW, WRITE_JOB, WRITE_ORDERS,
)  # fmt: skip
"""All of them."""
