/* The protocol of sessions, for Spin: frames, acknowledgements, cuts, Attach, take-over, snapshots,
 * crashes, drains and replay. README.md beside this file says what is modelled and how to run it.
 *
 * One named session, two clients that may take it from each other, one daemon that is started again
 * after each crash and each drain. A frame has one command; command `seq` fetches a value where
 * FETCHES(seq). Each option of a `do` loop below is one atomic transition of the code, and the comment in front of it
 * names the file and the function. Every run of the model is finite: commands and faults are bounded.
 */

#ifndef OPS
#define OPS 2 /* commands that a client issues in each of its turns */
#endif
#ifndef MAX
#define MAX 4 /* the highest number of a command */
#endif
#ifndef LEASES
#define LEASES 2 /* Hellos that get the session: the first one, and take-overs */
#endif
#ifndef CUTS
#define CUTS 1 /* connections that are cut */
#endif
#ifndef LATE
#define LATE 0 /* Attach calls that time out on their way */
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef DRAINS
#define DRAINS 0
#endif
#ifndef SNAPS
#define SNAPS 1 /* snapshots requested by a client or a timer */
#endif
#ifndef ROOM
#define ROOM 1 /* 0: a client may lack room for frames that have run */
#endif
#define WIRE 2 /* messages in flight in one direction of a stream */
#define NONE 9
#ifdef TRACE
#define FETCHES(seq) false /* no value is in the log */
#else
#define FETCHES(seq) ((seq) % 2 == 1)
#endif

/* A trace of a real history allows an observable transition only where the trace has it next; the
 * other transitions are free. trace.pml has these definitions in that case. */
#ifdef TRACE
#include "trace.pml"
#else
#define MAY(event, x, y) true
#define NOTE(event, x, y) skip
#define MAY_ISSUE(seq) true
#define MAY_HELLO true
#define MAY_CUT true
#define MAY_SNAP true
#define MAY_DRAIN true
#define MAY_SHED true
#endif

/* ---- properties ------------------------------------------------------------------------------ */
mtype = { EXACTLY_ONCE, NO_FENCED_FRAME, RIGHT_CLIENTS_GO_ON, TOLD_ONCE, LOST_FOR_A_REASON,
  ONE_FILE, ONE_SESSION, DELIVERED_OR_TOLD };
hidden byte i; /* counter of loops within one transition */
hidden mtype broken; /* the property that an assertion found violated */
#ifdef TRACE
#define CHECK(property, holds) skip
#else
#define CHECK(property, holds) \
  if :: (holds) -> skip :: else -> broken = property; printf("broken: %e\n", property); assert(false) fi
#endif

/* ---- a client: clients/session/frames/command_stream.cc and clients/python/teletensor/_connection/reattach.py ---- */
mtype = { ABSENT, GREETING, OPENING, SERVED, AWAY, ATTACHING, LOST };
typedef Client {
  mtype phase = ABSENT;
  byte lease;     /* the token */
  byte attach;
  byte base;      /* commands up to here belong to earlier clients */
  byte issued;    /* the last command */
  byte next;      /* the frame that this stream sends next */
  byte progress;  /* the last Progress message that was read (progress_upto) */
  byte completed; /* commands that have run, as far as the client knows */
  byte ran;       /* the same for this life of the daemon (ran_upto) */
  byte replay;    /* results up to here were received before a replay (replay_upto) */
  byte dropped;   /* frames up to here are not kept any more (dropped_upto) */
  byte ack[MAX + 1]; /* ack_upto of each frame; a frame keeps its bytes */
  byte got;       /* values that were read, a bit for each command */
  bit slot;       /* index of its stream */
  bit shed        /* it had no room for a frame that had run */
};
Client c[2];

/* ---- the network: a client has up to two streams, of which one may be dead on its own side ---- */
mtype = { FREE, CALLED, JOINED, ENDING };
typedef Stream {
  mtype state = FREE; /* on the daemon's side */
  bit heard;          /* true while the client reads it */
  bit cut;            /* accepts no more bytes, and ends without a status */
  byte lease, attach
};
Stream st[4]; /* client i has streams 2 i and 2 i + 1 */
chan up[4] = [WIRE] of { byte };                       /* a frame: the number of its command */
chan down[4] = [WIRE] of { byte, byte, byte, byte }; /* Progress: number, completed, value, snapshot */
#define OWN(i) (2 * (i) + c[i].slot)
#define OTHER(i) (2 * (i) + 1 - c[i].slot)
bit hello[2];   /* a Hello with take_over is in flight */
byte asks[2];   /* counter of the Attach in flight; 0 if there is none */
byte asks_late[2]; /* counter of an Attach in flight that its client has abandoned */
mtype = { NO_ANSWER, CONTINUE, REPLAY, ROLLBACK, TAKEN, UNKNOWN };
mtype answer[2] = NO_ANSWER; /* to the client's last Attach */
byte answered[2];            /* received_upto in that answer */

/* ---- the daemon ------------------------------------------------------------------------------ */
bit running = 1, closed;
byte leases;          /* numbers given so far */
byte holder;          /* the lease in the table; 0 if there is none */
byte owner[LEASES + 1];
bit taken[LEASES + 1];  /* records of retired leases of this daemon (LeaseTable::remember_ending) */
bit was_taken[LEASES + 1]; /* the same for all daemons; for LOST_FOR_A_REASON */
bit fenced[LEASES + 1]; /* the engine was asked where the next client begins; for NO_FENCED_FRAME */

/* server/session/lease/: state of the lease that has the session */
byte attach;
bit awaited, restored;
byte stream = NONE; /* its stream */
bit named;       /* it has a file (file_) */
/* server/session/outbox.h */
byte received, told, number, sender, written, valued;
bit greet, tell_written;
byte again;         /* the first value that is sent again; 0 if there is none */
byte kept[MAX + 1]; /* number of the message with a value; 0 if there is none or it is acknowledged */
/* engine/session/session.h */
byte accepted, completed; /* commands that are consumed, and that have run */
byte pending, pending_of; /* a frame that is not consumed, and the lease that sent it */
byte made_by[MAX + 1];    /* the lease whose client issued a command */
bit still, held;          /* the session is paused for a snapshot; permanently, in a drain */

/* server/session/leases/takeovers.cc: a take-over in progress */
mtype = { NOT, RETIRED, ASKED, ANSWERED };
mtype taking = NOT;
byte taker, from, start;

/* server/state/recovery.cc: one snapshot at a time */
mtype = { NO_JOB, WANTED, PICTURED, WRITING, FILED };
mtype job = NO_JOB;
bit last_job;   /* the job of a drain */
bit handed_on;  /* the job's lease has transferred its file to the next client */
bit new_hands;  /* the session's next client waits for a new snapshot */
bit draining;
typedef Image { byte lease, upto, attach, number; byte kept[MAX + 1] };
Image picture, file;
bit on_disk, fresh;

/* remaining number of each fault */
byte cuts = CUTS, late = LATE, crashes = CRASHES, drains = DRAINS, snaps = SNAPS;
bit went_down; /* a daemon has ended without a complete drain: a session may be unknown */

inline forget(which) { do :: up[which]?_ :: empty(up[which]) -> break od }
inline unread(which) { do :: down[which]?_,_,_,_ :: empty(down[which]) -> break od }

/* The first kept value from `seq` on; 0 if there is none. */
inline first_kept(seq) {
  again = seq;
  do
  :: again <= MAX && kept[again] == 0 -> again++
  :: again <= MAX && kept[again] != 0 -> break
  :: else -> again = 0; break
  od
}

/* Outbox::acknowledged */
inline acknowledge(upto) {
  i = 1;
  do
  :: i <= MAX -> if :: kept[i] <= upto -> kept[i] = 0 :: else fi; i++
  :: else -> break
  od;
  if :: again != 0 -> first_kept(again) :: else fi
}

/* Outbox::rewind */
inline rewind(upto, counter) {
  sender = counter;
  if :: number < upto -> number = upto :: else fi;
  acknowledge(upto);
  first_kept(1);
  greet = 1;
  tell_written = (written != 0)
}

/* Lease::end and the end of a daemon: its memory is lost */
inline life_ends() {
  running = 0; closed = 0; holder = 0; attach = 0; awaited = 0; restored = 0; stream = NONE;
  named = 0;
  received = 0; told = 0; number = 0; sender = 0; written = 0; valued = 0; greet = 0;
  tell_written = 0; again = 0; accepted = 0; completed = 0; pending = 0; pending_of = 0;
  still = 0; held = 0; taking = NOT; taker = 0; from = 0; start = 0; job = NO_JOB; last_job = 0;
  handed_on = 0; new_hands = 0; draining = 0; fresh = 0; clear_image(picture);
  i = 0;
  do :: i <= MAX -> kept[i] = 0; i++ :: else -> break od;
  i = 0;
  do :: i <= LEASES -> taken[i] = 0; fenced[i] = 0; i++ :: else -> break od;
  i = 0;
  do
  :: i < 4 ->
    forget(i);
    st[i].state = FREE; st[i].lease = 0; st[i].attach = 0;
    st[i].cut = st[i].heard;
    i++
  :: else -> break
  od;
  i = 0;
  do
  :: i < 2 ->
    asks_late[i] = 0; hello[i] = 0;
    if :: c[i].phase == GREETING -> c[i].phase = LOST :: else fi;
    if :: asks[i] != 0 -> asks[i] = 0; c[i].phase = AWAY :: else fi; /* the client gets UNAVAILABLE */
    i++
  :: else -> break
  od;
  i = 0
}

inline clear_image(it) {
  it.lease = 0; it.upto = 0; it.attach = 0; it.number = 0;
  i = 0;
  do :: i <= MAX -> it.kept[i] = 0; i++ :: else -> break od
}

inline copy_image(to, it) {
  to.lease = it.lease; to.upto = it.upto; to.attach = it.attach; to.number = it.number;
  i = 0;
  do :: i <= MAX -> to.kept[i] = it.kept[i]; i++ :: else -> break od
}

/* ---- clients --------------------------------------------------------------------------------- */
inline drop_stream(me) {
  st[OWN(me)].heard = 0; unread(OWN(me)); st[OWN(me)].cut = 1
}

/* Keeper._lose: the session has ended, and the program gets the reason */
inline lose(me) {
  c[me].phase = LOST; c[me].lease = 0; c[me].attach = 0; c[me].base = 0; c[me].issued = 0;
  c[me].next = 0; c[me].progress = 0; c[me].completed = 0; c[me].ran = 0; c[me].replay = 0;
  c[me].dropped = 0; c[me].got = 0; c[me].shed = 0;
  i = 0;
  do :: i <= MAX -> c[me].ack[i] = 0; i++ :: else -> break od;
  i = 0
}

inline forget_ran(me) {
  /* Session::forget_sent: frames that have run are retained until a snapshot has them */
  if
  :: seen_snapshot > c[me].dropped ->
    c[me].dropped = (seen_snapshot < c[me].ran -> seen_snapshot : c[me].ran)
  :: else
  fi
}

proctype Client_(bit me) {
  byte got_number, got_completed, got_value, seen_snapshot;
end:
  do
  /* Transport.hello, with take_over and the session's name */
  :: d_step { c[me].phase == ABSENT && leases + hello[1 - me] < LEASES && running && (me == 0 || leases > 0) &&
      MAY_HELLO ->
      c[me].phase = GREETING; hello[me] = 1 }
  :: d_step { c[me].phase == LOST && leases + hello[1 - me] < LEASES && running && MAY_HELLO ->
      c[me].phase = GREETING; hello[me] = 1 }

  /* Transport.open_stream: Run, in the metadata of which stands the attach counter. The program may
   * have been stopped since the answer to Attach, while the daemon was started again. */
  :: d_step { c[me].phase == OPENING && running && st[OTHER(me)].state == FREE ->
      c[me].slot = 1 - c[me].slot;
      st[OWN(me)].state = CALLED; st[OWN(me)].heard = 1; st[OWN(me)].cut = 0;
      st[OWN(me)].lease = c[me].lease; st[OWN(me)].attach = c[me].attach;
      c[me].phase = SERVED }
  :: d_step { c[me].phase == OPENING && !running -> c[me].phase = AWAY }

  /* Session::take_frame: a new command in its own frame, or a frame that is sent again */
  :: d_step { c[me].phase == SERVED && !st[OWN(me)].cut && st[OWN(me)].state != ENDING &&
      nfull(up[OWN(me)]) &&
      (c[me].next <= c[me].issued || (c[me].issued < c[me].base + OPS && c[me].issued < MAX && MAY_ISSUE(c[me].issued + 1))) ->
      if
      :: c[me].next > c[me].issued ->
        c[me].issued = c[me].next; c[me].ack[c[me].next] = c[me].progress
      :: else -> CHECK(EXACTLY_ONCE, c[me].next > c[me].dropped)
      fi;
      up[OWN(me)]!c[me].next;
#ifdef FRAMES_NOT_KEPT
      c[me].dropped = c[me].next;
#endif
      c[me].next++ }

  /* CommandStream::on_progress */
  :: d_step { c[me].phase == SERVED && nempty(down[OWN(me)]) ->
      down[OWN(me)]?got_number,got_completed,got_value,seen_snapshot;
      if
      :: got_number <= c[me].progress -> skip /* it had already arrived */
      :: else ->
        c[me].progress = got_number;
        if :: got_completed > c[me].completed -> c[me].completed = got_completed :: else fi;
        if :: got_completed > c[me].ran -> c[me].ran = got_completed :: else fi;
        forget_ran(me);
        if
        :: got_value == 0 -> skip
#ifndef TELLS_AGAIN
        :: got_value != 0 && (c[me].got & (1 << got_value)) != 0 && got_value <= c[me].replay -> skip
#endif
        :: else ->
          CHECK(TOLD_ONCE, (c[me].got & (1 << got_value)) == 0 && got_value > c[me].base);
          c[me].got = c[me].got | (1 << got_value)
        fi
      fi;
      got_number = 0; got_completed = 0; got_value = 0; seen_snapshot = 0 }

  /* Session::forget_sent: there is no room for frames that have run */
  :: d_step { !ROOM && MAY_SHED && c[me].phase == SERVED && c[me].dropped < c[me].ran ->
      c[me].dropped++; c[me].shed = 1 }

  /* Keeper._serve: the stream has ended without a status; unread messages may be lost */
  :: d_step { c[me].phase == SERVED && st[OWN(me)].cut -> drop_stream(me); c[me].phase = AWAY }
  /* ... or with the word "taken" */
  :: d_step { c[me].phase == SERVED && st[OWN(me)].state == ENDING && !st[OWN(me)].cut ->
      CHECK(LOST_FOR_A_REASON, was_taken[c[me].lease]);
      st[OWN(me)].state = FREE; forget(OWN(me)); drop_stream(me); lose(me) }

  /* Transport.attach */
  :: d_step { c[me].phase == AWAY && running && asks[me] == 0 ->
      c[me].attach++; asks[me] = c[me].attach; c[me].phase = ATTACHING }
  /* AttachError: the call has timed out, or its answer was lost */
  :: d_step { late > 0 && c[me].phase == ATTACHING && asks_late[me] == 0 ->
      late--; asks_late[me] = asks[me]; asks[me] = 0; answer[me] = NO_ANSWER; answered[me] = 0;
      c[me].phase = AWAY }
  /* Keeper._again: the answer to Attach */
  :: d_step { c[me].phase == ATTACHING && answer[me] == CONTINUE ->
      CHECK(EXACTLY_ONCE, answered[me] >= c[me].ran); /* Session::take_up has only commands that have not run */
      c[me].next = answered[me] + 1; c[me].phase = OPENING; answer[me] = NO_ANSWER; answered[me] = 0 }
  :: d_step { c[me].phase == ATTACHING && answer[me] == REPLAY ->
      c[me].next = answered[me] + 1; c[me].replay = c[me].completed; c[me].ran = 0;
      c[me].phase = OPENING; answer[me] = NO_ANSWER; answered[me] = 0 }
  :: d_step { c[me].phase == ATTACHING && answer[me] == ROLLBACK ->
      CHECK(LOST_FOR_A_REASON, c[me].shed);
      answer[me] = NO_ANSWER; lose(me) }
  :: d_step { c[me].phase == ATTACHING && answer[me] == TAKEN ->
      CHECK(LOST_FOR_A_REASON, was_taken[c[me].lease]);
      answer[me] = NO_ANSWER; lose(me) }
  :: d_step { c[me].phase == ATTACHING && answer[me] == UNKNOWN ->
      CHECK(LOST_FOR_A_REASON, went_down || was_taken[c[me].lease]);
      answer[me] = NO_ANSWER; lose(me) }
  od
}

/* ---- streams of the daemon: server/stream/run_stream.cc and server/session/lease/lease_streams.cc -------------------------- */
/* LeaseStreams::join, of a Run call with a token and an attach counter */
inline join(s) {
  if
  :: st[s].lease == holder && restored -> st[s].cut = 1; st[s].state = FREE /* "restart" */
  :: st[s].lease == holder && !restored && st[s].attach == attach && awaited ->
    st[s].state = JOINED; stream = s; awaited = 0
  :: taken[st[s].lease] -> st[s].state = ENDING
  :: else -> /* an earlier daemon had the lease, or the client no longer reads an older call */
    CHECK(RIGHT_CLIENTS_GO_ON, (went_down || was_taken[st[s].lease]) && st[s].lease != holder || !st[s].heard);
    st[s].cut = 1; st[s].state = FREE
  fi
}

/* Lease::submit, of a frame that stream s has read */
inline submit(s) {
  if
#ifdef FENCE_ENDS_EARLY
  :: st[s].lease == holder && stream != s -> skip
#elif !defined(STREAM_NOT_FENCED)
  :: stream != s -> skip /* fenced (run_now_): the client sends the frame on its new stream */
#endif
#ifdef LATE_CLOSE
  :: st[s].lease != holder && !(taking != NOT && st[s].lease == from) -> skip
#else
  :: st[s].lease != holder && !(taking == RETIRED && st[s].lease == from) -> skip /* HeldSession::close */
#endif
  :: else ->
    if
#ifndef TAKEN_TWICE
    :: frame <= received -> acknowledge(c[s / 2].ack[frame])
#endif
    :: else ->
      CHECK(RIGHT_CLIENTS_GO_ON, frame == received + 1); /* Outbox::received: out of order */
      CHECK(RIGHT_CLIENTS_GO_ON, pending == 0);          /* LeaseStreams::readable */
      received = frame;
      acknowledge(c[s / 2].ack[frame]);
      pending = frame; pending_of = st[s].lease
    fi
  fi
}

/* Outbox::take: kept messages again, then a value, then numbers alone. What is written to a connection that is
 * cut is lost. */
inline progress_of(s) {
  value = 0; seen = (tell_written -> written : 0);
  if
  :: again != 0 ->
    value = again;
    if :: !st[s].cut -> down[s]!kept[value],completed,value,0 :: else fi;
    first_kept(value + 1)
  :: else ->
    do
    :: valued < completed && !FETCHES(valued + 1) -> valued++
    :: valued < completed && FETCHES(valued + 1) -> valued++; value = valued; break
    :: else -> break
    od;
    number++;
    if :: !st[s].cut -> down[s]!number,completed,value,seen :: else fi;
#ifndef VALUES_NOT_KEPT
    if :: value != 0 -> kept[value] = number :: else fi;
#endif
    told = completed; greet = 0; tell_written = 0
  fi;
  value = 0; seen = 0
}
#define DUE (again != 0 || greet || tell_written || valued < completed && (FETCHES(completed) || \
  valued + 1 < completed) || completed > told && completed == received)

proctype Streams() {
  byte s, frame, value, seen;
end:
  do
  :: d_step { running && st[0].state == CALLED -> s = 0; join(s) }
  :: d_step { running && st[1].state == CALLED -> s = 1; join(s); s = 0 }
  :: d_step { running && st[2].state == CALLED -> s = 2; join(s); s = 0 }
  :: d_step { running && st[3].state == CALLED -> s = 3; join(s); s = 0 }

  /* RunStream::OnReadDone. A read that is under way ends also in a stream that is fenced. */
#define READS(x) (running && pending == 0 && (st[x].state == JOINED || st[x].state == ENDING) && nempty(up[x]))
  :: d_step { READS(0) -> s = 0; up[0]?frame; submit(s); frame = 0 }
  :: d_step { READS(1) -> s = 1; up[1]?frame; submit(s); s = 0; frame = 0 }
  :: d_step { READS(2) -> s = 2; up[2]?frame; submit(s); s = 0; frame = 0 }
  :: d_step { READS(3) -> s = 3; up[3]?frame; submit(s); s = 0; frame = 0 }

  /* RunStream::take_progress */
  :: d_step { running && stream != NONE && holder != 0 && sender == st[stream].attach && DUE &&
      (st[stream].cut || nfull(down[stream])) ->
      s = stream; progress_of(s); s = 0 }

  /* RunStream::OnCancel and LeaseStreams::detach: the daemon notices that the connection is cut */
#define HEARS(x) (running && st[x].cut && st[x].state != FREE)
  :: d_step { HEARS(0) -> st[0].state = FREE; forget(0); if :: stream == 0 -> stream = NONE :: else fi }
  :: d_step { HEARS(1) -> st[1].state = FREE; forget(1); if :: stream == 1 -> stream = NONE :: else fi }
  :: d_step { HEARS(2) -> st[2].state = FREE; forget(2); if :: stream == 2 -> stream = NONE :: else fi }
  :: d_step { HEARS(3) -> st[3].state = FREE; forget(3); if :: stream == 3 -> stream = NONE :: else fi }
  od
}

/* ---- the table of leases, and Attach: server/session/leases/lease_table.cc, server/stream/service.cc -------------------- */
/* LeaseStreams::attach */
inline attach_of(me, counter) {
  if
#ifndef TOKEN_NOT_FENCED
  :: taken[c[me].lease] -> reply = TAKEN
  :: !taken[c[me].lease] && c[me].lease != holder -> reply = UNKNOWN
#else
  :: holder == 0 -> reply = (taken[c[me].lease] -> TAKEN : UNKNOWN)
#endif
  :: else ->
    CHECK(NO_FENCED_FRAME, owner[holder] == me);
    if
    :: counter <= attach -> /* FAILED_PRECONDITION: the call arrives late */
      CHECK(RIGHT_CLIENTS_GO_ON, counter != c[me].attach); reply = NO_ANSWER
    :: counter > attach && c[me].completed > completed &&
        (c[me].dropped + 1 > received + 1) -> reply = ROLLBACK
    :: else ->
      reply = (c[me].completed > completed -> REPLAY : CONTINUE);
      NOTE(ATTACHED, received, (reply == REPLAY -> c[me].completed : 0));
      attach = counter; awaited = 1; restored = 0; stream = NONE;
      rewind(c[me].progress, counter)
    fi
  fi;
  if
  :: counter == asks[me] -> answer[me] = reply; answered[me] = received; asks[me] = 0
  :: else -> asks_late[me] = 0
  fi;
  reply = 0
}

/* Leases::open, or Leases::hand_over: a new lease, whose outbox begins after `upto` */
inline begin_lease(me, upto) {
  leases++; holder = leases; owner[holder] = me;
  attach = 1; awaited = 1; restored = 0; stream = NONE;
  received = upto; valued = upto; told = completed; number = 0; sender = 1; written = 0; greet = 0;
  tell_written = 0; again = 0;
  i = 0;
  do :: i <= MAX -> kept[i] = 0; i++ :: else -> break od;
  hello[me] = 0;
  c[me].lease = holder; c[me].attach = 1; c[me].base = upto; c[me].issued = upto;
  c[me].next = upto + 1; c[me].completed = completed; c[me].ran = completed; c[me].dropped = upto;
  c[me].phase = OPENING
}

#define GOES_ON(x, counter) (c[x].lease == holder && counter > attach && \
  !(c[x].completed > completed && c[x].dropped > received))
#define MAY_ATTACH(x, counter) (!GOES_ON(x, counter) || \
  MAY(ATTACHED, received, (c[x].completed > completed -> c[x].completed : 0)))

proctype Table() {
  byte me; mtype reply;
end:
  do
  :: d_step { running && asks[0] != 0 && MAY_ATTACH(0, asks[0]) ->
      me = 0; attach_of(me, asks[0]) }
  :: d_step { running && asks[1] != 0 && MAY_ATTACH(1, asks[1]) ->
      me = 1; attach_of(me, asks[1]); me = 0 }
  :: d_step { running && asks_late[0] != 0 && MAY_ATTACH(0, asks_late[0]) ->
      me = 0; attach_of(me, asks_late[0]) }
  :: d_step { running && asks_late[1] != 0 && MAY_ATTACH(1, asks_late[1]) ->
      me = 1; attach_of(me, asks_late[1]); me = 0 }

  /* Leases::take_over if no lease has the name: open() */
#ifdef TWO_AT_ONCE
#define SEIZED false
#else
#define SEIZED (taking != NOT)
#endif
  :: d_step { running && !closed && !SEIZED && holder == 0 && hello[0] && leases < LEASES &&
      MAY(OPENED, 0, 0) ->
      NOTE(OPENED, 0, 0);
      CHECK(ONE_SESSION, taking == NOT); me = 0; accepted = 0; completed = 0; begin_lease(me, 0) }
  :: d_step { running && !closed && !SEIZED && holder == 0 && hello[1] && leases < LEASES &&
      MAY(OPENED, 0, 0) ->
      NOTE(OPENED, 0, 0);
      CHECK(ONE_SESSION, taking == NOT); me = 1; accepted = 0; completed = 0; begin_lease(me, 0); me = 0 }
  /* ... and if a lease has it: retire(). Its streams end; frames that they have read continue. */
  :: d_step { running && !closed && !SEIZED && holder != 0 && (hello[0] || hello[1]) && leases < LEASES &&
      MAY(GIVEN_UP, 0, 0) ->
      NOTE(GIVEN_UP, 0, 0);
      taker = (hello[0] -> 0 : 1);
      hello[taker] = 0; taking = RETIRED; from = holder; taken[holder] = 1; was_taken[holder] = 1; holder = 0;
      if :: stream != NONE -> st[stream].state = ENDING :: else fi }
  /* Takeovers::ask_engine: HeldSession::close has waited for calls in progress, the engine is asked */
  :: d_step { running && taking == RETIRED -> taking = ASKED }
  /* engine::Session::hand_over: the last received frame is consumed. A waiting snapshot is cancelled. */
  :: d_step { running && taking == ASKED && pending == 0 && !still ->
      taking = ANSWERED; start = accepted; fenced[from] = 1;
      if :: job == WANTED -> job = NO_JOB :: else fi }
  /* Leases::hand_over */
  :: d_step { running && taking == ANSWERED && MAY(TAKEN_OVER, 0, 0) ->
      NOTE(TAKEN_OVER, 0, 0);
      if :: job != NO_JOB -> handed_on = 1 :: else fi;
#ifdef FILE_NOT_HANDED_ON
      named = 0;
#endif
      me = taker;
      begin_lease(me, start);
      if :: named -> written = file.upto; tell_written = 1; new_hands = 1 :: else fi;
      taking = NOT; from = 0; start = 0; taker = 0; me = 0 }
  od
}

/* ---- the engine: engine/session/session.cc and snapshot.cc ------------------------------------ */
proctype Engine() {
end:
  do
  /* Session::pump: the front end consumes a frame */
  :: d_step { running && pending != 0 && !held && !still ->
      CHECK(RIGHT_CLIENTS_GO_ON, pending == accepted + 1);
      CHECK(NO_FENCED_FRAME, !fenced[pending_of]);
      accepted++; made_by[accepted] = pending_of; pending = 0; pending_of = 0 }
  /* lanes: the next command has run; its client expects the value that it computes by itself */
  :: d_step { running && completed < accepted ->
      completed++;
      CHECK(EXACTLY_ONCE, holder == 0 || c[owner[holder]].phase == LOST || completed <= c[owner[holder]].base ||
        made_by[completed] == holder) }
  /* Session::pause_for_snapshot */
  :: d_step { running && job == WANTED && pending == 0 && !still -> still = 1 }
  od
}

/* ---- snapshots: server/state/recovery.cc ----------------------------------------------------------- */
proctype Recovery() {
end:
  do
  /* Recovery::snapshot: a client or a timer requests one */
  :: d_step { running && !draining && (holder != 0 || taking == RETIRED) && job == NO_JOB && snaps > 0 &&
      MAY_SNAP ->
      snaps--; job = WANTED; handed_on = 0 }
  /* ... or the session was taken over */
  :: d_step { running && !draining && holder != 0 && job == NO_JOB && new_hands ->
      new_hands = 0; job = WANTED; handed_on = 0 }
  /* engine::Session::take_image and Lease::save: everything has run. Outbox::seal numbers waiting results. */
  :: d_step { running && job == WANTED && still && completed == accepted ->
      do
      :: valued < completed ->
        valued++;
        if
        :: FETCHES(valued) ->
          number++; kept[valued] = number;
          if :: again == 0 -> again = valued :: else fi
        :: else
        fi
      :: else -> break
      od;
      picture.lease = (holder != 0 -> holder : from); picture.upto = accepted; picture.attach = attach;
      picture.number = number;
      i = 0;
      do :: i <= MAX -> picture.kept[i] = kept[i]; i++ :: else -> break od;
      held = last_job; still = 0; job = PICTURED;
#ifdef TOLD_TOO_EARLY
      written = picture.upto; tell_written = 1
#endif
      }
  /* Recovery::write: the writer has checked whether the snapshot is still needed */
  :: d_step { running && job == PICTURED ->
#ifndef FILE_NOT_HANDED_ON
      if :: handed_on -> job = NO_JOB; handed_on = 0; clear_image(picture) :: else ->
#else
      if :: true ->
#endif
        job = WRITING; fresh = !named fi }
  /* SessionStore::write: the file gets its name, after fsync */
  :: d_step { running && job == WRITING ->
      CHECK(ONE_FILE, !(fresh && on_disk));
      copy_image(file, picture); on_disk = 1; job = FILED }
  /* Lease::set_file: the session's lease is informed, or the file is no longer needed */
  :: d_step { running && job == FILED && (handed_on || MAY(SNAPSHOT, picture.upto, 0)) ->
      if
      :: !handed_on -> NOTE(SNAPSHOT, picture.upto, 0); named = 1; written = picture.upto; tell_written = 1
      :: else ->
#ifndef FILE_NOT_HANDED_ON
        if :: fresh -> on_disk = 0; clear_image(file) :: else fi
#else
        skip
#endif
      fi;
      job = NO_JOB; handed_on = 0; fresh = 0; clear_image(picture); i = 0 }
  /* Leases::shutdown, after the last snapshot: streams end with the word "restart" */
  :: d_step { running && held && job == NO_JOB && MAY(DRAINED, 0, 0) ->
      NOTE(DRAINED, 0, 0); life_ends() }

  /* Recovery::drain: Leases::close and settle, then a snapshot after which the session stays paused */
  :: d_step { running && drains > 0 && MAY_DRAIN && !closed && holder != 0 -> drains--; closed = 1 }
  :: d_step { running && closed && taking == NOT && holder != 0 && job == NO_JOB && !draining ->
      draining = 1; last_job = 1; job = WANTED; handed_on = 0; new_hands = 0 }
  /* ... whose time ends: the session is restored from its older file, or is lost */
  :: d_step { running && closed && crashes > 0 && MAY(DRAINED, 0, 0) ->
      NOTE(DRAINED, 0, 0); crashes--; went_down = 1; life_ends() }

  /* kill -9 */
  :: d_step { running && crashes > 0 && MAY(CRASHED, 0, 0) ->
      NOTE(CRASHED, 0, 0); crashes--; went_down = 1; life_ends() }
  /* the next daemon: Recovery::restore, Leases::restore, Lease::restore, Outbox::restore */
  :: d_step { !running && (!on_disk || MAY(RESTORED, file.upto, 0)) ->
      running = 1;
      if
      :: on_disk ->
        NOTE(RESTORED, file.upto, 0);
        holder = file.lease; attach = file.attach; sender = file.attach; awaited = 1;
#ifndef RUN_BEFORE_ATTACH
        restored = 1;
#endif
        number = file.number; named = 1;
        accepted = file.upto; completed = file.upto; received = file.upto; told = file.upto;
        written = file.upto; valued = file.upto;
        i = 0;
        do :: i <= MAX -> kept[i] = file.kept[i]; i++ :: else -> break od
      :: else
      fi }
  od
}

/* ---- connections ----------------------------------------------------------------------------- */
proctype Network() {
end:
  do
  :: d_step { cuts > 0 && MAY_CUT && st[0].heard && !st[0].cut -> cuts--; st[0].cut = 1 }
  :: d_step { cuts > 0 && MAY_CUT && st[1].heard && !st[1].cut -> cuts--; st[1].cut = 1 }
  :: d_step { cuts > 0 && MAY_CUT && st[2].heard && !st[2].cut -> cuts--; st[2].cut = 1 }
  :: d_step { cuts > 0 && MAY_CUT && st[3].heard && !st[3].cut -> cuts--; st[3].cut = 1 }
  od
}

/* Whether a client has issued all its commands, knows that all have run, and has each value. */
#define ALL_GOT(x) (c[x].phase == SERVED && c[x].issued == (c[x].base + OPS < MAX -> c[x].base + OPS : MAX) && \
  c[x].completed == c[x].issued && \
  (!FETCHES(c[x].issued) || (c[x].got & (1 << c[x].issued)) != 0) && \
  (c[x].issued < c[x].base + 2 || !FETCHES(c[x].issued - 1) || (c[x].got & (1 << (c[x].issued - 1))) != 0))
#define TOLD(x) (c[x].phase == LOST || c[x].phase == ABSENT || c[x].phase == GREETING && leases == LEASES)

init {
  atomic {
#ifdef TRACE
    read_trace();
#endif
    /* The search begins with the last option. */
    run Network(); run Recovery(); run Table(); run Client_(0); run Client_(1); run Streams(); run Engine()
  }
  /* No transition is possible any more. */
  timeout -> CHECK(DELIVERED_OR_TOLD, (ALL_GOT(0) || TOLD(0)) && (ALL_GOT(1) || TOLD(1)))
}
