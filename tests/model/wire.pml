/* Signals on their way from one rank to another, each with what it covers: the row of one slot and block to the
   receiver, the result of one part of a wave of the receiver's own. */

#define ON_ITS_WAY(cell) (cell != 0 && cell / 16 == src)

proctype wire(byte dst; byte src; byte slot; byte block) {
end:
  do
#ifdef MUTANT_SIGNAL_OVERTAKES
  :: d_step { row_sent[ROW(dst, src, slot, block)] != 0 && row_sent[ROW(dst, src, slot, block)] < 16 ->
       row_sent[ROW(dst, src, slot, block)] = row_sent[ROW(dst, src, slot, block)] + 16;
       arrival[ROW(dst, src, slot, block)]++ }
  :: d_step { row_sent[ROW(dst, src, slot, block)] >= 16 ->
       row[ROW(dst, src, slot, block)] = row_sent[ROW(dst, src, slot, block)] - 16;
       row_sent[ROW(dst, src, slot, block)] = 0 }
#else
  :: d_step { row_sent[ROW(dst, src, slot, block)] != 0 ->
       row[ROW(dst, src, slot, block)] = row_sent[ROW(dst, src, slot, block)];
       row_sent[ROW(dst, src, slot, block)] = 0;
       arrival[ROW(dst, src, slot, block)]++ }
#endif
  :: d_step { ON_ITS_WAY(result_sent[RESULT(dst, slot, block)]) ->
       result[RESULT(dst, slot, block)] = result_sent[RESULT(dst, slot, block)];
       result_sent[RESULT(dst, slot, block)] = 0;
       result_count[AT(dst, src, slot)]++ }
  od
}
