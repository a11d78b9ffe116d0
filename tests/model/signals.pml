/* The signal protocol of one heap, small enough to be explored whole: a few ranks, waves and calls, every order of
   steps and deliveries. docs/protocol.md explains the protocol and what this model leaves out.

   Settings (-D): RANKS (2, 3) RING (1, 2) CALLS (1..3) PARTS (1, 2: routes of a wave); CALL0 CALL1 CALL2: waves of each
   rank, one digit a rank from rank 0 on, in a lined call 0 or 1; LINED: bit c set when call c is lined; LAZY_CUT;
   ANY_ROUTES. Each MUTANT_* breaks one rule of the protocol: the exploration must then find an error.

   What is a step. An actor looks at memory, acts and tells others in one step, at any time after what it waits for has
   come, so that a cell that could change under a reader's eyes is caught changed. Rows and results are TORN from the
   moment they are put until their signal lands, which is a step of its own and comes in any order. A line needs no such
   step: it has one reader, and a late line is a slow reader; a line put over one that was not read yet is an error. A
   late consumed signal is a slow sender. The model is sequentially consistent. */

#ifndef CALL1
#define CALL1 0
#endif
#ifndef CALL2
#define CALL2 0
#endif
#if RANKS == 2
#define DIGIT(r) ((r) == 0 -> 10 : 1)
#define FOR_ALL(test) (test(0) && test(1))
#define SUM(term) (term(0) + term(1))
#else
#define DIGIT(r) ((r) == 0 -> 100 : ((r) == 1 -> 10 : 1))
#define FOR_ALL(test) (test(0) && test(1) && test(2))
#define SUM(term) (term(0) + term(1) + term(2))
#endif

/* The setting's tables, filled by init. */
byte waves[RANKS * CALLS];  /* [rank][call] */
byte first[RANKS * CALLS];  /* waves sent in counted form before the call: a source's wave sequence never restarts */
bool lined[CALLS];
#define WAVES(r, c) waves[(r) * CALLS + (c)]
#define FIRST(r, c) first[(r) * CALLS + (c)]
#define IS_LINED(c) lined[c]
#define SETTING(r, c) ((((c) == 0 -> CALL0 : ((c) == 1 -> CALL1 : CALL2)) / DIGIT(r)) % 10)
#define RING_SLOT(r, c, w) (IS_LINED(c) -> 0 : (FIRST(r, c) + (w)) % RING)

/* Identity of what a cell holds: call and wave. The cell's place names the source; results name their writer. */
#define ID(c, w) ((c) * 4 + (w) + 1)
#define CALL_OF(id) (((id) - 1) / 4)
#define WAVE_OF(id) (((id) - 1) % 4)
#define RESULT_ID(writer, id) ((writer) * 16 + (id))
#define TORN 255

/* Tags that readers of lines match: the wave's place in its source's sequence, or the epoch. A cleared line has 0. */
#ifdef MUTANT_TAG_RESTARTS
#define LIST_TAG(src, id) ((id) == 0 -> 0 : WAVE_OF(id) + 1)
#else
#define LIST_TAG(src, id) ((id) == 0 -> 0 : FIRST(src, CALL_OF(id)) + WAVE_OF(id) + 1)
#endif
#define EPOCH_TAG(id) ((id) == 0 -> 0 : CALL_OF(id) + 1)

#ifdef MUTANT_ONE_LINE_SET
#define SET(c) 0
#else
#define SET(c) ((c) % 2)
#endif

/* A zero-token rank sends headers, and every rank waits for them. */
#ifdef MUTANT_NO_EMPTY_HEADER
#define SENDS_HEADER(r, c) (WAVES(r, c) > 0)
#else
#define SENDS_HEADER(r, c) true
#endif

#define PAIR(a, b) ((a) * RANKS + (b))
#define AT(a, b, slot) (PAIR(a, b) * RING + (slot))
#define ROW(dst, src, slot, block) (AT(dst, src, slot) * PARTS + (block))
#define RESULT(owner, slot, part) (((owner) * RING + (slot)) * PARTS + (part))
#define LINE(dst, src, set) (PAIR(dst, src) * 2 + (set))
#define ROW_LINE(dst, src, set, block) (LINE(dst, src, set) * PARTS + (block))
#define RESULT_LINE(owner, set, part) (((owner) * 2 + (set)) * PARTS + (part))

/* The symmetric heap, every rank's. A line is unread until its reader has had it. */
byte header[RANKS * RANKS * 2];                  /* [receiver][source][set] */
byte ids[RANKS * RANKS * 2];
byte row_line[RANKS * RANKS * 2 * PARTS];        /* [receiver][source][set][block] */
byte result_line[RANKS * 2 * PARTS];             /* [owner][set][part] */
byte list[RANKS * RANKS * RING];                 /* [receiver][source][slot] */
byte row[RANKS * RANKS * RING * PARTS];          /* [receiver][source][slot][block] */
byte arrival[RANKS * RANKS * RING * PARTS];
byte result[RANKS * RING * PARTS];               /* [owner][slot][part] */
byte result_count[RANKS * RANKS * RING];         /* [owner][expert rank][slot] */
byte consumed[RANKS * RANKS * RING];             /* [source][receiver][slot] */
bool header_unread[RANKS * RANKS * 2];
bool ids_unread[RANKS * RANKS * 2];
bool row_line_unread[RANKS * RANKS * 2 * PARTS];
bool result_line_unread[RANKS * 2 * PARTS];
bool list_unread[RANKS * RANKS * RING];
byte row_sent[RANKS * RANKS * RING * PARTS];     /* put, signal not landed; 0: nothing on its way */
byte result_sent[RANKS * RING * PARTS];

/* A rank's own memory. Counts are of the current call, unless said otherwise. */
byte epoch[RANKS];
bool header_known[RANKS * RANKS];                /* [receiver][source] */
byte listed[RANKS * RANKS];                      /* waves opened */
byte landed[RANKS * RANKS];                      /* waves whose rows are all here */
byte planned[RANKS];                             /* own waves sent */
byte combined[RANKS];                            /* own waves combined */
byte retired_waves[RANKS];                       /* waves of all sources retired here */
byte wave_id[RANKS * RANKS * RING];              /* [receiver][source][slot] the wave that runs, 0: none */
byte entries[RANKS * RANKS * RING];              /* its parts that come here */
byte blocks_landed[RANKS * RANKS * RING];
byte retired[RANKS * RANKS * RING];
byte arrived_base[RANKS * RANKS * RING * PARTS]; /* over all calls */
byte result_target[RANKS * RANKS * RING];        /* [owner][expert rank][slot], over all calls */

/* What lists and ids say besides their identity: the rank that has each part's expert. */
byte list_route[RANKS * RING * PARTS];           /* [source][slot][part] */
byte ids_route[RANKS * 2 * PARTS];               /* [source][set][part] */
#define ROUTE(src, c, slot, part) \
  (IS_LINED(c) -> ids_route[RESULT_LINE(src, SET(c), part)] : list_route[RESULT(src, slot, part)])
#if PARTS == 1
#define ENTRIES(src, c, slot, dst) (ROUTE(src, c, slot, 0) == (dst) -> 1 : 0)
#define PART(src, c, slot, dst, block) 0
#else
#define ENTRIES(src, c, slot, dst) \
  ((ROUTE(src, c, slot, 0) == (dst) -> 1 : 0) + (ROUTE(src, c, slot, 1) == (dst) -> 1 : 0))
#define PART(src, c, slot, dst, block) ((block) == 0 && ROUTE(src, c, slot, 0) == (dst) -> 0 : 1)
#endif

inline put_line(cell, unread, id) {
  assert(!unread);
  cell = id;
  unread = true
}

#include "rank.pml"
#include "receiver.pml"
#include "wire.pml"

#define HAS_FINISHED(r) (epoch[r] == CALLS)

/* Starts everybody; when all ranks have finished, nothing is left on the way and every line was read. */
init {
  byte me, source, slot, block;
  d_step {
    for (slot : 0 .. CALLS - 1) {
      lined[slot] = (LINED >> slot) & 1;
      for (me : 0 .. RANKS - 1) {
        WAVES(me, slot) = SETTING(me, slot);
        if
        :: slot > 0 -> FIRST(me, slot) = FIRST(me, slot - 1) + (lined[slot - 1] -> 0 : WAVES(me, slot - 1))
        :: else
        fi
      }
    }
  }
  atomic {
    for (me : 0 .. RANKS - 1) {
      run rank(me);
      run combiner(me);
      for (source : 0 .. RANKS - 1) {
        run subscriber(me, source);
        for (slot : 0 .. RING - 1) {
          for (block : 0 .. PARTS - 1) {
            run processor(me, source, slot, block);
            if
            :: me != source -> run wire(me, source, slot, block)
            :: else
            fi
          }
        }
      }
    }
    me = 0;
    source = 0;
    slot = 0;
    block = 0
  }
  atomic {
    FOR_ALL(HAS_FINISHED);
    for (slot : 0 .. RANKS * RANKS * 2 - 1) { assert(!header_unread[slot] && !ids_unread[slot]) }
    for (slot : 0 .. RANKS * RANKS * 2 * PARTS - 1) { assert(!row_line_unread[slot]) }
    for (slot : 0 .. RANKS * 2 * PARTS - 1) { assert(!result_line_unread[slot]) }
    for (slot : 0 .. RANKS * RANKS * RING - 1) { assert(!list_unread[slot]) }
    for (slot : 0 .. RANKS * RANKS * RING * PARTS - 1) { assert(row_sent[slot] == 0) }
    for (slot : 0 .. RANKS * RING * PARTS - 1) { assert(result_sent[slot] == 0) }
  }
}
