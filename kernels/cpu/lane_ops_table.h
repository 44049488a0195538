/* The body of lane_ops_{plain,avx2,avx512}.c: every vector kernel, compiled for the instruction set that the file chose, and the
 * table of them, named LANE_OPS. */
#include "kernels/cpu/act_lanes.h"
#include "kernels/cpu/attention_lanes.h"
#include "kernels/cpu/lane_ops.h"
#include "kernels/cpu/rope_kv_lanes.h"
#include "kernels/cpu/sample_lanes.h"

const struct cpu_lane_ops LANE_OPS = {
    .rms_norm = rms_norm_rows,
    .quantize = quantize_rows,
    .gated = gated_rows,
    .row_stats = row_stats_one,
    .sample_weights = sample_weights_of_row,
    .sample_mass_above = sample_mass_above_in_row,
    .sample_band = sample_band_of_row,
    .rope_append = rope_append_token,
    .attention_segment = attention_segment,
    .attention_merge = attention_merge,
    .attention_finish = attention_finish,
    .exp = exp_of_vector,
};
