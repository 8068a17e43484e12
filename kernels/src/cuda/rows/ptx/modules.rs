// Written by generate.py.
modules! {
    [move_wide move_narrow rotate_f32 rotate_f16 rotate_bf16 rotate_i8_f32 rotate_i8_f16 rotate_i4_f32 rotate_i4_f16
    rotate_f8_f32 rotate_f8_f16]
    rows
}
