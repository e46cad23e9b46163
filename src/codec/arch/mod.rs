//! Instruction sets: the operations that codecs need, and the sets that the processor supports.
//!
//! A codec is written once, as a [`Job`] over any [`Kernel`]; each set compiles it with its own instructions. Every
//! operation is defined to the bit, the order of sums included, so that all sets give the same bytes. `scalar.rs`
//! defines the results; `tests/codec/` compares all sets that the machine has.
//!
//! To add a set: a file here, `Choice`, and `InstructionSet::available`. A value of the set's type proves that the
//! processor has its instructions, so only its constructor checks.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_cells;
#[cfg(target_arch = "x86_64")]
mod avx2_codes;
#[cfg(target_arch = "x86_64")]
mod avx2_products;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_cells;
#[cfg(target_arch = "x86_64")]
mod avx512_codes;
mod cells;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_cells;
#[cfg(target_arch = "aarch64")]
mod neon_codes;
mod scalar;
mod scalar_cells;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tables;

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
pub(super) use kernel::{Group, Job, Kernel, LANES, signed};
#[cfg(target_arch = "aarch64")]
use neon::Neon;
use scalar::Scalar;

/// An instruction set that this processor supports. All sets give the same bytes. The
/// functions of [`codec`](super) use the widest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstructionSet(Choice);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    Scalar(Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512<false>),
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512<true>),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl InstructionSet {
    /// Every set that this processor supports, widest first.
    pub fn available() -> impl Iterator<Item = InstructionSet> {
        #[cfg(target_arch = "x86_64")]
        let wide = [
            Avx512::detect().map(Choice::Avx512Bf16),
            Avx512::detect().map(Choice::Avx512),
            Avx2::detect().map(Choice::Avx2),
        ];
        #[cfg(target_arch = "aarch64")]
        let wide = [Neon::detect().map(Choice::Neon)];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let wide: [Option<Choice>; 0] = [];
        wide.into_iter().flatten().chain([Choice::Scalar(Scalar)]).map(InstructionSet)
    }

    /// The widest set that this processor supports.
    pub fn detected() -> InstructionSet {
        InstructionSet::available().next().unwrap_or(InstructionSet(Choice::Scalar(Scalar)))
    }

    /// The name: `avx512-bf16`, `avx512`, `avx2`, `neon` or `scalar`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Choice::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512Bf16(_) => "avx512-bf16",
            #[cfg(target_arch = "aarch64")]
            Choice::Neon(_) => "neon",
        }
    }

    /// Runs `job` compiled for this set.
    pub(super) fn run<J: Job>(self, job: J) -> J::Output {
        match self.0 {
            Choice::Scalar(kernel) => kernel.run(job),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(kernel) => kernel.run(job),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512(kernel) => kernel.run(job),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512Bf16(kernel) => kernel.run(job),
            #[cfg(target_arch = "aarch64")]
            Choice::Neon(kernel) => kernel.run(job),
        }
    }
}
