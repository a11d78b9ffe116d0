/* What a rank does for everybody's tokens, its own among them: the subscriber, one process a source, and the
   processors, one a part in flight. How landed rows become m-blocks is left open: a part may run as soon as it has
   landed or, with LAZY_CUT, only when the cutting rule must release it. */

#define LISTING RING_SLOT(source, CALL, listed[PAIR(me, source)])
#define LANDING RING_SLOT(source, CALL, landed[PAIR(me, source)])
#define BLOCK blocks_landed[AT(me, source, LANDING)]

#define HEADER_MATCHES (EPOCH_TAG(header[LINE(me, source, SET(CALL))]) == CALL + 1)
#define IDS_MATCH (EPOCH_TAG(ids[LINE(me, source, SET(CALL))]) == CALL + 1)
#define LIST_MATCHES (LIST_TAG(source, list[AT(me, source, LISTING)]) == FIRST_TAG + listed[PAIR(me, source)])
#ifdef MUTANT_TAG_RESTARTS
#define FIRST_TAG 1
#else
#define FIRST_TAG (FIRST(source, CALL) + 1)
#endif

/* Lists may run ahead of rows by a ring of waves. */
#define MAY_LIST \
  (listed[PAIR(me, source)] < WAVES(source, CALL) && listed[PAIR(me, source)] < landed[PAIR(me, source)] + RING && \
   (source == me -> planned[me] > listed[PAIR(me, me)] : \
    header_known[PAIR(me, source)] && (IS_LINED(CALL) -> IDS_MATCH : LIST_MATCHES)))

inline read_list() {
  if
  :: source == me
  :: source != me && IS_LINED(CALL) ->
     assert(ids[LINE(me, source, SET(CALL))] == ID(CALL, 0));
     ids_unread[LINE(me, source, SET(CALL))] = false
  :: else ->
     assert(list[AT(me, source, slot)] == ID(CALL, listed[PAIR(me, source)]));
     list_unread[AT(me, source, slot)] = false
  fi
}

inline open_wave() {
  assert(wave_id[AT(me, source, slot)] == 0);
  entries[AT(me, source, slot)] = ENTRIES(source, CALL, slot, me);
  blocks_landed[AT(me, source, slot)] = 0;
  retired[AT(me, source, slot)] = 0;
  if
#ifdef MUTANT_EMPTY_NOT_CONSUMED
  :: entries[AT(me, source, slot)] == 0 -> retired_waves[me]++
#else
  :: entries[AT(me, source, slot)] == 0 -> retire_wave()
#endif
  :: else -> wave_id[AT(me, source, slot)] = ID(CALL, listed[PAIR(me, source)])
  fi;
  listed[PAIR(me, source)]++
}

inline retire_wave() {
  if
  :: IS_LINED(CALL)
  :: else -> consumed[AT(source, me, slot)]++
  fi;
  retired_waves[me]++
}

#define HAS_WAVE (landed[PAIR(me, source)] < listed[PAIR(me, source)])
#define ROW_IS_HERE \
  (source == me || \
   (IS_LINED(CALL) -> \
      EPOCH_TAG(row_line[ROW_LINE(me, source, SET(CALL), BLOCK)]) == CALL + 1 : \
      arrival[ROW(me, source, LANDING, BLOCK)] > arrived_base[ROW(me, source, LANDING, BLOCK)]))

/* In lined form this is where a row is copied out of its lines. */
inline land_row() {
  if
  :: source == me
  :: source != me && IS_LINED(CALL) ->
     assert(row_line[ROW_LINE(me, source, SET(CALL), BLOCK)] == ID(CALL, 0));
     row_line_unread[ROW_LINE(me, source, SET(CALL), BLOCK)] = false
  :: else ->
#ifndef MUTANT_BASE_NOT_ADVANCED
     arrived_base[ROW(me, source, LANDING, BLOCK)]++
#else
     skip
#endif
  fi
}

proctype subscriber(byte me; byte source) {
  byte slot;
end:
  do
  :: d_step { source != me && CALL < CALLS && !header_known[PAIR(me, source)] && HEADER_MATCHES ->
       assert(header[LINE(me, source, SET(CALL))] == ID(CALL, 0));
       header_unread[LINE(me, source, SET(CALL))] = false;
       header_known[PAIR(me, source)] = true }
  :: d_step { CALL < CALLS && MAY_LIST ->
       slot = LISTING;
       read_list();
       open_wave();
       slot = 0 }
  :: d_step { CALL < CALLS && HAS_WAVE && BLOCK < entries[AT(me, source, LANDING)] && ROW_IS_HERE ->
       land_row();
       BLOCK++;
       if
       :: BLOCK == entries[AT(me, source, LANDING)] -> landed[PAIR(me, source)]++
       :: else
       fi }
  :: d_step { CALL < CALLS && HAS_WAVE && entries[AT(me, source, LANDING)] == 0 -> landed[PAIR(me, source)]++ }
  od
}

/* With a tile never full and never flushed early, a wave's rows are cut when every source has landed it or ended. */
#ifdef LAZY_CUT
#define IS_CLOSED(peer) \
  (HAS_ENTERED(peer) && (landed[PAIR(me, peer)] > WAVE_OF(THIS_WAVE) || landed[PAIR(me, peer)] == WAVES(peer, CALL)))
#define MAY_CUT FOR_ALL(IS_CLOSED)
#else
#define MAY_CUT true
#endif
#define THIS_WAVE wave_id[AT(me, source, slot)]

inline push_result() {
  part = PART(source, CALL, slot, me, block);
  if
  :: IS_LINED(CALL) ->
     put_line(result_line[RESULT_LINE(source, SET(CALL), part)], result_line_unread[RESULT_LINE(source, SET(CALL), part)],
              RESULT_ID(me, THIS_WAVE))
  :: !IS_LINED(CALL) && source == me ->
     result[RESULT(me, slot, part)] = RESULT_ID(me, THIS_WAVE);
     result_count[AT(me, me, slot)]++
  :: else ->
     assert(result_sent[RESULT(source, slot, part)] == 0);
     result[RESULT(source, slot, part)] = TORN;
     result_sent[RESULT(source, slot, part)] = RESULT_ID(me, THIS_WAVE)
  fi;
  part = 0
}

/* Reads the row and pushes its result; then counts it, and who counts the last one retires the wave. */
proctype processor(byte me; byte source; byte slot; byte block) {
  byte part, last;
end:
  do
  :: d_step { THIS_WAVE != 0 && THIS_WAVE != last && blocks_landed[AT(me, source, slot)] > block && MAY_CUT ->
       last = THIS_WAVE;
       assert(source == me || IS_LINED(CALL) || row[ROW(me, source, slot, block)] == THIS_WAVE);
       push_result() }
     d_step { assert(THIS_WAVE == last);
       retired[AT(me, source, slot)]++;
       if
       :: retired[AT(me, source, slot)] == entries[AT(me, source, slot)] ->
          THIS_WAVE = 0;
          retire_wave()
       :: else
       fi }
  od
}
