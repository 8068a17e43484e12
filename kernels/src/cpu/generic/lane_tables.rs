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

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [usize; 7] = [1, 2, 4, 8, 16, 32, usize::MAX];

    /// `max_pairs` on arrays: of each four lanes the two pairs of `a`, then the two of `b`.
    fn max_pairs<const LANES: usize>(a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|lane| {
            let (four, i) = (lane / 4, lane % 4);
            let from = if i < 2 { a } else { b };
            let pair = four * 4 + i % 2 * 2;
            from[pair].max(from[pair + 1])
        })
    }

    /// `max_fours` on arrays: the pairs of fours of `a`, then of `b`.
    fn max_fours<const LANES: usize>(a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|lane| {
            let (four, i) = (lane / 4, lane % 4);
            let half = LANES / 8;
            let (from, pair) = if four < half { (a, four) } else { (b, four - half) };
            from[pair * 8 + i].max(from[pair * 8 + 4 + i])
        })
    }

    /// The reduction of `group::maxima_in_registers`, on arrays, of the numbers of each lane's group.
    fn reduced<const LANES: usize>(group: usize) -> [i32; LANES] {
        let units = registers_per_scales(LANES, group);
        let mut registers: Vec<[i32; LANES]> = (0..units).map(|k| scale_lanes::<LANES>(group, k)).collect();
        let mut left = units;
        while left > 1 {
            left /= 2;
            for i in 0..left {
                let (a, b) = (registers[2 * i], registers[2 * i + 1]);
                registers[i] = if left >= units / 4 { max_pairs(a, b) } else { max_fours(a, b) };
            }
        }
        registers[0]
    }

    fn check<const LANES: usize>() {
        for group in GROUPS {
            let (per_register, registers) = (groups_in_register(LANES, group), registers_per_scales(LANES, group));
            assert_eq!(per_register * registers, LANES);
            for k in 0..registers {
                let lanes = scale_lanes::<LANES>(group, k);
                for (i, lane) in lanes.into_iter().enumerate() {
                    assert_eq!(lane as usize, (k * LANES + i) / group.min(LANES), "{LANES} {group} {k} {i}");
                }
                assert_eq!(all_scale_lanes::<LANES>(group)[k], lanes);
            }
            let reduced = reduced::<LANES>(group);
            for (g, lane) in maximum_lanes::<LANES>(group).into_iter().enumerate() {
                assert_eq!(reduced[lane as usize], g as i32, "{LANES} lanes, groups of {group}: group {g}");
            }
        }
    }

    #[test]
    fn every_lane_finds_its_scale_and_every_maximum_its_group() {
        check::<8>();
        check::<16>();
    }
}
