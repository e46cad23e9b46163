//! Reasons why a move of many tensors leaves some of them exact.

use crate::model::dtype::Dtype;

/// The reason why a move of many tensors leaves one exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeptBy {
    /// The keep list in the store's settings names it.
    KeepList,
    /// It stands in a file with codes, of which it may be a part.
    BesideCodes,
    /// It has one dimension, or few elements.
    TooSmall,
    /// Its type is not encoded.
    NotFloat,
    /// Its file holds it in fewer bits already.
    Quantized,
    /// Its type, or the length of its blocks, is one that is not packed.
    NotPacked,
    /// Packing makes none of its blocks smaller.
    NotSmaller,
    /// Its file has a checksum of it, which readers compare.
    Checksummed,
    /// Its elements are those of other tensors, or lie apart.
    View,
}

/// Numbers of tensors that a move of many leaves exact, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// Kept by the keep list in the store's settings.
    pub by_keep_list: u64,
    /// Kept because their file has codes.
    pub beside_codes: u64,
    /// Kept because they have one dimension or few elements.
    pub too_small: u64,
    /// Kept because their type is not encoded.
    pub not_float: u64,
    /// Kept because they have fewer bits already.
    pub quantized: u64,
    /// Kept because their type or their blocks are not packed.
    pub not_packed: u64,
    /// Kept because packing does not make them smaller.
    pub not_smaller: u64,
    /// Kept because of a checksum in their file.
    pub checksummed: u64,
    /// Kept because their elements are those of other tensors, or lie apart.
    pub views: u64,
}

impl KeptBy {
    /// The reason for a type that is not encoded.
    pub fn of(dtype: Dtype) -> KeptBy {
        if dtype.is_ggml() { KeptBy::Quantized } else { KeptBy::NotFloat }
    }
}

impl Kept {
    pub fn count(&mut self, by: KeptBy) {
        *match by {
            KeptBy::KeepList => &mut self.by_keep_list,
            KeptBy::BesideCodes => &mut self.beside_codes,
            KeptBy::TooSmall => &mut self.too_small,
            KeptBy::NotFloat => &mut self.not_float,
            KeptBy::Quantized => &mut self.quantized,
            KeptBy::NotPacked => &mut self.not_packed,
            KeptBy::NotSmaller => &mut self.not_smaller,
            KeptBy::Checksummed => &mut self.checksummed,
            KeptBy::View => &mut self.views,
        } += 1;
    }

    pub fn add(&mut self, other: Kept) {
        self.by_keep_list += other.by_keep_list;
        self.beside_codes += other.beside_codes;
        self.too_small += other.too_small;
        self.not_float += other.not_float;
        self.quantized += other.quantized;
        self.not_packed += other.not_packed;
        self.not_smaller += other.not_smaller;
        self.checksummed += other.checksummed;
        self.views += other.views;
    }

    pub fn sum(&self) -> u64 {
        self.taken_by_all()
            + self.not_float
            + self.quantized
            + self.not_packed
            + self.not_smaller
            + self.checksummed
            + self.views
    }

    /// Those that a move of all takes.
    fn taken_by_all(&self) -> u64 {
        self.by_keep_list + self.beside_codes + self.too_small
    }

    /// `67 kept exact: 12 by the keep list, 54 too small (":all" takes them), 1 not float`; empty where
    /// no tensor is kept.
    pub fn text(&self) -> String {
        self.text_as("kept exact")
    }

    /// As [`text`](Self::text), with other words for how they are kept.
    pub fn text_as(&self, kept: &str) -> String {
        if self.sum() == 0 {
            return String::new();
        }
        let part = |count: u64, why: &str| (count > 0).then(|| format!("{count} {why}"));
        let taken = [
            part(self.by_keep_list, "by the keep list"),
            part(self.beside_codes, "beside codes"),
            part(self.too_small, "too small"),
        ];
        let taken: Vec<String> = taken.into_iter().flatten().collect();
        let never = [
            part(self.not_float, "not float"),
            part(self.quantized, "quantized already"),
            part(self.not_packed, "not of a kind that is packed"),
            part(self.not_smaller, "not smaller when packed"),
            part(self.checksummed, "with a checksum in the file"),
            part(self.views, "with elements of others or apart"),
        ];
        let mut parts: Vec<String> = Vec::new();
        if !taken.is_empty() {
            let them = if self.taken_by_all() == 1 { "it" } else { "them" };
            parts.push(format!("{} (\":all\" takes {them})", taken.join(", ")));
        }
        parts.extend(never.into_iter().flatten());
        format!("{} {kept}: {}", self.sum(), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::Kept;

    #[test]
    fn kept_tensors_are_counted_by_reason() {
        let mut kept = Kept { by_keep_list: 12, too_small: 54, not_float: 1, ..Kept::default() };
        assert_eq!(
            kept.text(),
            "67 kept exact: 12 by the keep list, 54 too small (\":all\" takes them), 1 not float"
        );
        kept = Kept { quantized: 9, ..Kept::default() };
        assert_eq!(
            (kept.text(), Kept::default().text()),
            ("9 kept exact: 9 quantized already".into(), "".into())
        );
    }
}
