// Written by generate.py.
modules! {
    [attend_wide attend_narrow combine mass_wide mass_narrow]
    f32_f32 f32_f16 f16_f32 f16_f16 f32_i8_f32 f32_i8_f16 f16_i8_f32 f16_i8_f16 f32_i4_f32 f32_i4_f16 f16_i4_f32
    f16_i4_f16 bf16_bf16 bf16_i8_f32 bf16_i8_f16 bf16_i4_f32 bf16_i4_f16 f32_f8_f32 f32_f8_f16 f16_f8_f32 f16_f8_f16
    bf16_f8_f32 bf16_f8_f16
}
