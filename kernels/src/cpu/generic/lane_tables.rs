//! Permutations of lanes, as tables: where the scales and the maxima of groups lie in a register of `LANES` values.

/// The number of groups of `group` values in a register, and of their scales; 1 for a group of a register or more.
pub(crate) const fn groups_in_register(lanes: usize, group: usize) -> usize {
    if group < lanes { lanes / group } else { 1 }
}

/// The number of registers of values that share one register of scales.
pub(crate) const fn registers_per_scales(lanes: usize, group: usize) -> usize {
    lanes / groups_in_register(lanes, group)
}

/// For each lane of register `k` of values, the lane of its scale in the register of scales that
/// [`registers_per_scales`] registers share.
pub(crate) const fn scale_lanes<const LANES: usize>(group: usize, k: usize) -> [i32; LANES] {
    let mut lanes = [0; LANES];
    let mut i = 0;
    while i < LANES {
        let group_in_register = if group < LANES { i / group } else { 0 };
        lanes[i] = (k * groups_in_register(LANES, group) + group_in_register) as i32;
        i += 1;
    }
    lanes
}

/// [`scale_lanes`] for every register that shares a register of scales; the rest is 0.
pub(crate) const fn all_scale_lanes<const LANES: usize>(group: usize) -> [[i32; LANES]; LANES] {
    let mut tables = [[0; LANES]; LANES];
    let mut k = 0;
    while k < registers_per_scales(LANES, group) {
        tables[k] = scale_lanes(group, k);
        k += 1;
    }
    tables
}

/// Where each group's maximum is after the horizontal maximum of [`registers_per_scales`] registers: reduced first by
/// pairs of neighboring lanes, twice, and then by pairs of neighboring fours, each time two registers to one, in the
/// order of `Simd::max_pairs` and `Simd::max_fours`.
pub(crate) const fn maximum_lanes<const LANES: usize>(group: usize) -> [i32; LANES] {
    let mut lanes = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        let (four, i) = (lane / 4, lane % 4);
        let g = match group {
            1 => lane,
            // One register's pairs are in one half of each four.
            2 => i / 2 * (LANES / 2) + four * 2 + i % 2,
            // One register's fours are in as many fours, of which some have become one.
            _ => {
                let fours = groups_in_register(LANES, group);
                (four / fours * 4 + i) * fours + four % fours
            }
        };
        lanes[g] = lane as i32;
        lane += 1;
    }
    lanes
}
