/* What a rank does for its own tokens: the dispatcher, the combiner, and the last actor out of a call. */

#define CALL epoch[me]
#define WAVE planned[me]
#define SLOT RING_SLOT(me, CALL, WAVE)

/* The gate: has this receiver retired what used the ring slot before? */
#ifdef MUTANT_NO_CONSUMED_WAIT
#define HAS_RETIRED(peer) true
#elif defined(MUTANT_ONE_CONSUMED_COUNTER)
#define HAS_RETIRED(peer) (consumed[AT(me, peer, 0)] + consumed[AT(me, peer, 1)] + RING > FIRST(me, CALL) + WAVE)
#else
#define HAS_RETIRED(peer) (consumed[AT(me, peer, SLOT)] >= (FIRST(me, CALL) + WAVE) / RING)
#endif
#ifdef MUTANT_NO_COMBINE_GATE
#define HAS_COMBINED true
#else
#define HAS_COMBINED (combined[me] + RING > WAVE)
#endif
#define GATE_IS_OPEN (IS_LINED(CALL) || (FOR_ALL(HAS_RETIRED) && HAS_COMBINED))

/* Even waves go to one rank, odd ones to several; which rank changes with call and wave. Or any way at all. */
inline choose_routes() {
  for (part : 0 .. PARTS - 1) {
#ifdef ANY_ROUTES
    if
    :: peer = 0
    :: peer = 1
    fi;
#else
    peer = (me + CALL + WAVE + 1 + part * (WAVE % 2)) % RANKS;
#endif
    if
    :: IS_LINED(CALL) -> ids_route[RESULT_LINE(me, SET(CALL), part)] = peer
    :: else -> list_route[RESULT(me, slot, part)] = peer
    fi
  }
}

/* Counted form: lists to all, rows to those that have an expert of theirs. */
inline send_wave() {
  for (peer : 0 .. RANKS - 1) {
    result_target[AT(me, peer, slot)] = result_target[AT(me, peer, slot)] + ENTRIES(me, CALL, slot, peer);
    if
    :: peer != me ->
       put_line(list[AT(peer, me, slot)], list_unread[AT(peer, me, slot)], ID(CALL, WAVE));
       for (part : 0 .. ENTRIES(me, CALL, slot, peer) - 1) {
         assert(row_sent[ROW(peer, me, slot, part)] == 0);
         row[ROW(peer, me, slot, part)] = TORN;
         row_sent[ROW(peer, me, slot, part)] = ID(CALL, WAVE)
       }
    :: else
    fi
  }
}

/* Lined form: ids to all, rows to those that have an expert of theirs. */
inline send_lines() {
  for (peer : 0 .. RANKS - 1) {
    if
    :: peer != me ->
       put_line(ids[LINE(peer, me, SET(CALL))], ids_unread[LINE(peer, me, SET(CALL))], ID(CALL, 0));
       for (part : 0 .. ENTRIES(me, CALL, 0, peer) - 1) {
         put_line(row_line[ROW_LINE(peer, me, SET(CALL), part)], row_line_unread[ROW_LINE(peer, me, SET(CALL), part)],
                  ID(CALL, 0))
       }
    :: else
    fi
  }
}

inline enter_call() {
  for (peer : 0 .. RANKS - 1) {
    if
    :: peer != me && SENDS_HEADER(me, CALL) ->
       put_line(header[LINE(peer, me, SET(CALL))], header_unread[LINE(peer, me, SET(CALL))], ID(CALL, 0))
    :: else
    fi
  }
}

#define WAVES_OF(peer) WAVES(peer, CALL)
#define HAS_LANDED(peer) (landed[PAIR(me, peer)] == WAVES(peer, CALL))
#define HAS_ENTERED(peer) (peer == me || header_known[PAIR(me, peer)] || !SENDS_HEADER(peer, CALL))
#define CALL_IS_DONE \
  (FOR_ALL(HAS_ENTERED) && FOR_ALL(HAS_LANDED) && retired_waves[me] == SUM(WAVES_OF) && \
   combined[me] == WAVES(me, CALL))

inline leave_call() {
  for (peer : 0 .. RANKS - 1) {
    header_known[PAIR(me, peer)] = false;
    listed[PAIR(me, peer)] = 0;
    landed[PAIR(me, peer)] = 0
  }
  planned[me] = 0;
  combined[me] = 0;
  retired_waves[me] = 0;
  epoch[me]++
}

/* Loop variables are no state. */
inline forget() {
  peer = 0;
  part = 0;
  slot = 0
}

proctype rank(byte me) {
  byte peer, part, slot;
  atomic { enter_call(); forget() }
  do
  :: atomic { CALL < CALLS && WAVE < WAVES(me, CALL) && GATE_IS_OPEN ->
       slot = SLOT;
       choose_routes();
       if
       :: IS_LINED(CALL) -> send_lines()
       :: else -> send_wave()
       fi;
       planned[me]++;
       forget() }
  :: atomic { CALL < CALLS && CALL_IS_DONE ->
       leave_call();
       if
       :: CALL < CALLS -> enter_call()
       :: else
       fi;
       forget() }
  :: CALL == CALLS -> break
  od
}

#undef WAVE
#undef SLOT
#define WAVE combined[me]
#define SLOT RING_SLOT(me, CALL, WAVE)

#define ARE_COUNTED(peer) (result_count[AT(me, peer, SLOT)] >= result_target[AT(me, peer, SLOT)])
#if PARTS == 1
#define LINES_MATCH (EPOCH_TAG(result_line[RESULT_LINE(me, SET(CALL), 0)] % 16) == CALL + 1)
#else
#define LINES_MATCH \
  (EPOCH_TAG(result_line[RESULT_LINE(me, SET(CALL), 0)] % 16) == CALL + 1 && \
   EPOCH_TAG(result_line[RESULT_LINE(me, SET(CALL), 1)] % 16) == CALL + 1)
#endif

/* Reads the results of the oldest own wave not combined yet. */
proctype combiner(byte me) {
  byte part;
end:
  do
  :: d_step { CALL < CALLS && planned[me] > WAVE && !IS_LINED(CALL) && FOR_ALL(ARE_COUNTED) ->
       for (part : 0 .. PARTS - 1) {
         assert(result[RESULT(me, SLOT, part)] == RESULT_ID(ROUTE(me, CALL, SLOT, part), ID(CALL, WAVE)))
       }
       part = 0;
       combined[me]++ }
  :: d_step { CALL < CALLS && planned[me] > WAVE && IS_LINED(CALL) && LINES_MATCH ->
       for (part : 0 .. PARTS - 1) {
         assert(result_line[RESULT_LINE(me, SET(CALL), part)] == RESULT_ID(ROUTE(me, CALL, 0, part), ID(CALL, 0)));
         result_line_unread[RESULT_LINE(me, SET(CALL), part)] = false
       }
       part = 0;
       combined[me]++ }
  od
}
#undef WAVE
#undef SLOT
