/* Two blocks of engine hopper that take tasks together and share weights (src/cuda/hopper/block_pair.cuh, foreman.cuh,
   loader.cuh), small enough to be explored whole: every order of their foremen, loaders, consumers and copies.

   Settings (-D): CLAIMS (of two tickets; then comes one of two exits); STEPS (stages of a shared task); GIVES_UP: the rank may
   give up at any time. Each MUTANT_* breaks one rule: the exploration must then find an error.

   Barriers have true parities: whoever waits for a phase that has gone by twice waits for ever. Stages hold the number of the
   claim and step whose weights they have; a copy that lands while a stage is read, or in place of another, is an error, and so
   is reading anything but what the task wants. A role is one process; of its barriers' arrivals one is left beside the
   copies'. What a task of its own loads is there at once: only shared weights come as copies, which land in any order. */

#define STAGES 2
#define SLOTS 2

/* Kinds of tasks. Two of a claim are both shared or both not; the second ticket may have no task (0). */
#define WIDE 1    /* shared, each block has a box of a stage's weights */
#define NARROW 2  /* shared, the first block alone has one */
#define OWN 3     /* not shared, of one stage */
#define NONE 4    /* not shared, of no stage: a reduce task */
#define EXIT 5
#define LAST 6    /* an offer: none follows */
#define IS_SHARED(kind) ((kind) == WIDE || (kind) == NARROW)
#define HAS_BOX(kind, block) ((kind) == WIDE || ((kind) == NARROW && (block) == 0))

#define AT(block, stage) ((block) * STAGES + (stage))
#define BOX(block, stage, half) (AT(block, stage) * 2 + (half))
#define TAG(number, step) ((number) * 4 + (step) + 1)
#define OWN_TAG(block, number) (128 + (number) * 2 + (block))

/* The mailbox. */
byte offer_number, offer_kind, taken;

/* Of each block. */
chan loads[2] = [SLOTS] of { byte, byte, bool };  /* kind, number of the claim, aligns */
chan multiplies[2] = [SLOTS] of { byte, byte, bool };
byte to_load[2], to_multiply[2];                  /* tasks in slots that the loader, the consumer has not done */
#define SLOT_FREE(block) (to_load[block] < SLOTS && to_multiply[block] < SLOTS)

/* Barriers: the parity of the phase under way, and what it still waits for. */
bit full_phase[2 * STAGES], empty_phase[2 * STAGES], ready_phase[2 * STAGES];
bool loader_came[2 * STAGES];
short bytes[2 * STAGES];  /* announced and not landed, in boxes */

byte stage[2 * STAGES * 2];    /* [block][stage][half]: the tag of what it holds */
byte on_way[2 * STAGES * 2];   /* the same of a copy that has not landed */
bool reading[2 * STAGES];

bool giving_up;

/* Whether the phase of parity `p` is over. */
#define COMPLETE(phase, p) ((phase) != (p))

/* Whether a block tells the other that its stage takes shared weights, and waits for the other to tell it. */
#ifdef MUTANT_LOOKS_WITHOUT_BOX
#define TELLS(kind, block) true
#define LOOKS(kind, block) true
#else
#define TELLS(kind, block) HAS_BOX(kind, 1 - (block))
#ifdef MUTANT_DOES_NOT_LOOK
#define LOOKS(kind, block) false
#else
#define LOOKS(kind, block) HAS_BOX(kind, block)
#endif
#endif

inline fill(block, kind, number) {
  aligns = IS_SHARED(kind) && number != last_shared + 1;
#ifdef MUTANT_NO_ALIGN
  aligns = false;
#endif
  if
  :: IS_SHARED(kind) -> last_shared = number
  :: else
  fi;
  to_load[block]++;
  to_multiply[block]++;
  loads[block]!kind, number, aligns;
  multiplies[block]!kind, number, aligns;
  aligns = false
}

active proctype FirstForeman() {
  byte number, last_sent, last_shared, claims, kind, other;
  bool aligns, exiting;

  do
  :: giving_up -> break
  :: exiting -> break
  :: atomic { !exiting && SLOT_FREE(0) && taken == last_sent ->
      if
      :: claims == CLAIMS -> kind = EXIT; other = EXIT; exiting = true
      :: claims < CLAIMS -> claims++;
        if
        :: kind = WIDE; other = WIDE
        :: kind = NARROW; other = NARROW
        :: kind = OWN; other = 0
        :: kind = NONE; other = OWN
        fi
      fi;
      number++;
#ifdef MUTANT_UNCOUNTED_CLAIM
      if
      :: other == 0 -> number--
      :: else
      fi;
#endif
      if
      :: other != 0 -> last_sent = number; offer_kind = other; offer_number = number
      :: else
      fi;
      fill(0, kind, number);
      kind = 0;
      other = 0
    }
  od;
  if
  :: atomic { !exiting && SLOT_FREE(0) -> fill(0, EXIT, 0) }
  :: exiting
  fi;
  atomic { taken == last_sent -> number++; offer_kind = LAST; offer_number = number }
}

inline take_offer() {
  number = offer_number;
  taken = number;
  if
  :: offer_kind == LAST -> none_follows = true
  :: else
  fi
}

active proctype SecondForeman() {
  byte number, last_shared;
  bool aligns, none_follows, exiting;

  do
  :: giving_up -> break
  :: exiting -> break
  :: atomic { !exiting && !none_follows && SLOT_FREE(1) && offer_number != number ->
      take_offer();
      if
      :: !none_follows -> exiting = offer_kind == EXIT; fill(1, offer_kind, number)
      :: else
      fi
    }
  od;
#ifndef MUTANT_NO_DRAIN
  do
  :: exiting || none_follows -> break
  :: atomic { !exiting && !none_follows && offer_number != number && (SLOT_FREE(1) || !IS_SHARED(offer_kind)) ->
      take_offer();
      if
      :: IS_SHARED(offer_kind) -> fill(1, offer_kind, number)
      :: else
      fi
    }
  od;
#endif
  if
  :: atomic { !exiting && SLOT_FREE(1) -> fill(1, EXIT, 0) }
  :: exiting
  fi
}

inline advance() {
  if
  :: at == STAGES - 1 -> at = 0; parity = 1 - parity
  :: else -> at++
  fi
}

/* A phase of a stage's `full` ends with the loader's arrival and the last of the announced copies. */
inline try_complete(place) {
  if
  :: loader_came[place] && bytes[place] == 0 -> loader_came[place] = false; full_phase[place] = 1 - full_phase[place]
  :: else
  fi
}

inline come_and_advance() {
  loader_came[AT(block, at)] = true;
  try_complete(AT(block, at));
  advance()
}

inline send_box(to, half, tag) {
  assert(on_way[BOX(to, at, half)] == 0);  /* copy_over_copy */
  on_way[BOX(to, at, half)] = tag
}

#define NUM_STEPS(kind) (IS_SHARED(kind) -> STEPS : ((kind) == OWN -> 1 : 0))

proctype Loader(byte block) {
  byte kind, number, step, at;
  bit parity;
  bit looks[STAGES];
  bool aligns;

  do
  :: atomic { loads[block]?kind, number, aligns ->
      if
      :: kind == EXIT -> goto over
      :: else
      fi
    };
    do
    :: atomic { aligns && at != 0 && COMPLETE(empty_phase[AT(block, at)], 1 - parity) -> come_and_advance() }
    :: !aligns || at == 0 -> break
    od;
    do
    :: step == NUM_STEPS(kind) -> break
    :: atomic { kind == OWN && step == 0 && COMPLETE(empty_phase[AT(block, at)], 1 - parity) ->
        assert(!reading[AT(block, at)]);
        stage[BOX(block, at, 0)] = OWN_TAG(block, number);
        come_and_advance();
        step++
      }
    :: atomic { IS_SHARED(kind) && step < STEPS && COMPLETE(empty_phase[AT(block, at)], 1 - parity) ->
        bytes[AT(block, at)] = bytes[AT(block, at)] + (kind == WIDE -> 2 : 1);
        if
        :: TELLS(kind, block) -> ready_phase[AT(1 - block, at)] = 1 - ready_phase[AT(1 - block, at)]
        :: else
        fi
      };
      atomic { !LOOKS(kind, block) || COMPLETE(ready_phase[AT(block, at)], looks[at]) ->
        if
        :: LOOKS(kind, block) -> looks[at] = 1 - looks[at]
        :: else
        fi;
        if
        :: HAS_BOX(kind, block) -> send_box(block, block, TAG(number, step)); send_box(1 - block, block, TAG(number, step))
        :: else
        fi;
        come_and_advance();
        step++
      }
    od;
    atomic { step = 0; kind = 0; number = 0; aligns = false; to_load[block]-- }
  od;
over:
}

proctype Consumer(byte block) {
  byte kind, number, step, at;
  bit parity;
  bool aligns;

  do
  :: atomic { multiplies[block]?kind, number, aligns ->
      if
      :: kind == EXIT -> goto over
      :: else
      fi
    };
    do
    :: atomic { aligns && at != 0 && COMPLETE(full_phase[AT(block, at)], parity) ->
        empty_phase[AT(block, at)] = 1 - empty_phase[AT(block, at)];
        advance()
      }
    :: !aligns || at == 0 -> break
    od;
    do
    :: step == NUM_STEPS(kind) -> break
    :: atomic { step < NUM_STEPS(kind) && COMPLETE(full_phase[AT(block, at)], parity) -> reading[AT(block, at)] = true };
      atomic {
        if
        :: kind == OWN -> assert(stage[BOX(block, at, 0)] == OWN_TAG(block, number))  /* weights of another task */
        :: else -> assert(stage[BOX(block, at, 0)] == TAG(number, step));
          assert(kind == NARROW || stage[BOX(block, at, 1)] == TAG(number, step))
        fi;
        stage[BOX(block, at, 0)] = 0;
        stage[BOX(block, at, 1)] = 0;
        reading[AT(block, at)] = false;
        empty_phase[AT(block, at)] = 1 - empty_phase[AT(block, at)];
        advance();
        step++
      }
    od;
    atomic { step = 0; kind = 0; number = 0; aligns = false; to_multiply[block]-- }
  od;
over:
}

/* Copies land in any order. */
proctype Copy(byte block; byte at; byte half) {
end:
  do
  :: atomic { on_way[BOX(block, at, half)] != 0 ->
      assert(!reading[AT(block, at)]);  /* read_under_copy */
      stage[BOX(block, at, half)] = on_way[BOX(block, at, half)];
      on_way[BOX(block, at, half)] = 0;
      bytes[AT(block, at)]--;
      try_complete(AT(block, at))
    }
  od
}

#ifdef GIVES_UP
active proctype Rank() {
  giving_up = true
}
#endif

init {
  byte i;
  atomic {
    run Loader(0); run Loader(1); run Consumer(0); run Consumer(1);
    for (i : 0 .. 2 * STAGES * 2 - 1) { run Copy(i / (2 * STAGES), i / 2 % STAGES, i % 2) }
  }
}
