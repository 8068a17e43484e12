// Written by generate.py.
modules! {
    [exponential alibi_slope]
    arithmetic
}
