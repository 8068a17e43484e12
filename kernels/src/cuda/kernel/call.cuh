// What store and load share: the token and the slot of each unit of work.
//
// A unit is a few neighboring elements of a head, of keys and of values. A warp takes rounds of `round` neighboring
// units, across tokens and sequences: every warp has equal work, however ragged the batch is.
#pragma once

#include "parameters.cuh"

constexpr u32 BLOCK = 256;
constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffff;

// As in status.rs.
enum Finding : u32 {
    SEQSTARTS = 1,
    START_POS = 2,
    TOO_MANY_TOKENS = 3,
    TOO_FEW_TOKENS = 4,
    TOO_MANY_PAGES = 5,
    SLOT = 6,
    KVSTARTS = 7,
};

// Which tokens a kernel goes over: the current ones, all of them, or all of them where `seqstarts` is the `kvstarts` of
// packed keys and values.
enum Phase { STORE, LOAD, PACKED };

// The prefix sum of the sequences' rows, by chunks: equal numbers of sequences, one chunk for each thread of a block.
struct Batch {
    // The first row of each chunk, and the number of rows.
    i64 starts[BLOCK + 1];
    i64 warp_rows[BLOCK / WARP];
};

__shared__ Batch batch;

__device__ __forceinline__ i64 min64(i64 a, i64 b) { return a < b ? a : b; }

__device__ __forceinline__ u32 divide(u32 n, const Divisor& divisor) {
    return (n + __umulhi(n, divisor.magic)) >> divisor.shift;
}

// Records a finding in the status word, if it is the first.
__device__ __noinline__ void report(u64* status, Finding finding, u64 b, u64 token) {
    constexpr u64 MAX_BATCH = (1 << 28) - 1;
    constexpr u64 MAX_TOKEN = 0xffffffff;
    b = b < MAX_BATCH ? b : MAX_BATCH;
    token = token < MAX_TOKEN ? token : MAX_TOKEN;
    atomicCAS(status, 0ull, static_cast<u64>(finding) << 60 | b << 32 | token);
}

__device__ __forceinline__ u32 chunk_len(const Parameters& p) { return (p.batch + BLOCK - 1) / BLOCK; }

// Rows of sequence b, in current_key or in key, for lengths that have been checked.
template <Phase PHASE>
__device__ __forceinline__ i64 rows_of(const Parameters& p, u32 b) {
    const i64 seqlen = __ldg(p.seqstarts + b + 1) - __ldg(p.seqstarts + b);
    return PHASE == LOAD ? __ldg(p.start_pos + b) + seqlen : seqlen;
}

// Checks all lengths and fills `batch`, in every block alike. False if a length is wrong.
//
// Sums saturate at one more than the number of rows, so that wrong lengths cannot overflow them.
template <Phase PHASE>
__device__ bool read_lengths(const Parameters& p) {
    const u32 thread = threadIdx.x;
    const u32 lane = thread % WARP;
    const u32 warp = thread / WARP;
    const i64 limit = p.rows + 1;
    const u64 first = static_cast<u64>(thread) * chunk_len(p);
    i64 rows = 0;
    bool bad = false;
#pragma unroll 1
    for (u64 b = first; b < first + chunk_len(p) && b < p.batch; ++b) {
        const i64 start = __ldg(p.seqstarts + b);
        const i64 end = __ldg(p.seqstarts + b + 1);
        const i64 past = PHASE == PACKED ? 0 : __ldg(p.start_pos + b);
        if (start < 0 || end < start || (b == 0 && start != 0)) {
            // A negative start without a fall here: seqstarts has fallen, or not started at 0, in an earlier sequence.
            if (end < start || b == 0) {
                report(p.status, PHASE == PACKED ? KVSTARTS : SEQSTARTS, b, 0);
            }
            bad = true;
        } else if (past < 0) {
            report(p.status, START_POS, b, 0);
            bad = true;
        } else {
            rows = min64(rows + min64(end - start, limit), limit);
            if (PHASE == LOAD) {
                rows = min64(rows + min64(past, limit), limit);
            }
        }
    }
    i64 sum = rows;
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        const i64 before = __shfl_up_sync(ALL_LANES, sum, distance);
        sum = lane < distance ? sum : min64(sum + before, limit);
    }
    const i64 before_lane = __shfl_up_sync(ALL_LANES, sum, 1);
    if (lane == WARP - 1) {
        batch.warp_rows[warp] = sum;
    }
    __syncthreads();
    i64 before_warp = 0;
#pragma unroll 1
    for (u32 w = 0; w < warp; ++w) {
        before_warp = min64(before_warp + batch.warp_rows[w], limit);
    }
    batch.starts[thread] = lane == 0 ? before_warp : min64(before_warp + before_lane, limit);
    if (thread == BLOCK - 1) {
        batch.starts[BLOCK] = min64(before_warp + sum, limit);
    }
    if (__syncthreads_or(bad)) {
        return false;
    }
    const i64 total = batch.starts[BLOCK];
    if (thread == 0 && total > p.rows) {
        report(p.status, TOO_MANY_TOKENS, p.batch, 0);
    }
    if (thread == 0 && total < p.rows && p.exact_rows) {
        report(p.status, TOO_FEW_TOKENS, p.batch, 0);
    }
    return total <= p.rows;
}

// The slot of a token of sequence b, or -1, reported, if that is not inside the cache.
//
// Unsigned: a negative entry of cachestarts becomes too large, and no sum overflows.
__device__ __forceinline__ i64 slot_at(const Parameters& p, u32 b, u64 token) {
    const u64 page_size = p.page_size;
    const u64 page = token < page_size ? 0 : token / page_size;
    if (page >= static_cast<u64>(p.max_p)) {
        report(p.status, TOO_MANY_PAGES, b, token);
        return -1;
    }
    const u64 start = __ldg(p.cachestarts + b * p.max_p + page);
    const u64 skip = token - page * page_size;
    const u64 max_t = p.max_t;
    if (start >= max_t || skip >= max_t - start) {
        report(p.status, SLOT, b, token);
        return -1;
    }
    return start + skip;
}

// The slot of a row of current_key or key, or -1, reported, if that is not inside the cache.
template <Phase PHASE>
__device__ __forceinline__ i64 slot_of(const Parameters& p, i64 row) {
    // Binary search for the last chunk that starts at the row or before it; that skips empty chunks.
    u32 chunk = 0;
#pragma unroll 1
    for (u32 n = min(p.batch, BLOCK); n > 1;) {
        const u32 half = n / 2;
        if (batch.starts[chunk + half] <= row) {
            chunk += half;
        }
        n -= half;
    }
    u32 b = chunk * chunk_len(p);
    i64 t = row - batch.starts[chunk];
    if (p.batch > BLOCK) {
#pragma unroll 1
        for (i64 rows; b + 1 < p.batch && t >= (rows = rows_of<PHASE>(p, b)); ++b) {
            t -= rows;
        }
    }
    u64 token = t;
    if (PHASE == STORE) {
        token += __ldg(p.start_pos + b);
    }
    return slot_at(p, b, token);
}

// The place of a lane's unit.
struct Place {
    // False if the unit is past the end of the round, or its token has no slot.
    bool active;
    // The unit's number in the call.
    u64 unit;
    // The slot, the head, and the unit's number in its head.
    i64 slot;
    u32 h;
    u32 d;
};

// The offset in cache or scale of the place's head, of keys, in elements.
__device__ __forceinline__ i64 head_at(const Strides& strides, const Place& place) {
    return place.slot * strides.token + place.h * strides.head;
}

// Calls `move` with N places per lane at a time, for all rounds of this warp. All lanes of the warp call it together,
// so it may use shuffles.
template <Phase PHASE, u32 N, class Move>
__device__ __forceinline__ void for_each_place(const Parameters& p, Move move) {
    if (!read_lengths<PHASE>(p)) {
        return;
    }
    const u32 lane = threadIdx.x % WARP;
    const u64 units = static_cast<u64>(batch.starts[BLOCK]) * p.units_per_token.value;
    const u64 warp = (static_cast<u64>(blockIdx.x) * BLOCK + threadIdx.x) / WARP;
    const u64 step = static_cast<u64>(gridDim.x) * (BLOCK / WARP) * p.round;
#pragma unroll 1
    for (u64 first = warp * p.round; first < units; first += step) {
        const u64 first_row = first / p.units_per_token.value;
        const u32 offset = first - first_row * p.units_per_token.value;
        const u32 count = units - first < p.round ? units - first : p.round;
        // Each lane looks up the slot of one row: a round spans at most 32.
        const u32 rows = divide(offset + count - 1, p.units_per_token) + 1;
        const i64 slot = lane < rows ? slot_of<PHASE>(p, first_row + lane) : -1;
        __syncwarp();
#pragma unroll 1
        for (u32 done = 0; done < count; done += N * WARP) {
            Place places[N];
#pragma unroll
            for (u32 i = 0; i < N; ++i) {
                const u32 unit = done + i * WARP + lane;
                const u32 row = divide(offset + unit, p.units_per_token);
                const u32 rest = offset + unit - row * p.units_per_token.value;
                Place& place = places[i];
                place.slot = __shfl_sync(ALL_LANES, slot, row % WARP);
                place.active = unit < count && place.slot >= 0;
                place.unit = first + unit;
                place.h = divide(rest, p.units_per_head);
                place.d = rest - place.h * p.units_per_head.value;
            }
            move(places);
        }
    }
}
