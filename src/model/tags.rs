//! Tags of files and directories: words that users choose, such as `model:llama3-70b`.

use crate::model::{Error, Result};

/// Longest tag in bytes.
pub const TAG_BYTES_MAX: usize = 128;
/// Most tags of a file.
pub const TAGS_MAX: usize = 64;

/// Checks a tag. A directory of `/.tags` has its name.
pub fn check_tag(tag: &str) -> Result<()> {
    let wrong = |reason: &str| Err(Error::invalid(format!("{tag:?} is not a tag: {reason}")));
    if tag.is_empty() || tag.len() > TAG_BYTES_MAX {
        return wrong("it needs 1 to 128 bytes");
    }
    if tag.starts_with('.') || tag.trim() != tag {
        return wrong("it begins with a dot, or begins or ends with a space");
    }
    if tag.contains(['/', ',']) || tag.chars().any(char::is_control) {
        return wrong("it has a slash, a comma or a control character");
    }
    Ok(())
}

/// Parses tags with commas between. An empty text has none. Repeated tags are dropped.
pub fn parse_tags(text: &str) -> Result<Vec<&str>> {
    let mut tags = Vec::new();
    for tag in text.split(',').filter(|_| !text.is_empty()) {
        check_tag(tag)?;
        if !tags.contains(&tag) {
            tags.push(tag);
        }
        if tags.len() > TAGS_MAX {
            return Err(Error::invalid(format!("more than {TAGS_MAX} tags")));
        }
    }
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_words_between_commas() {
        assert_eq!(parse_tags("").unwrap(), Vec::<&str>::new());
        assert_eq!(
            parse_tags("model:llama3-70b,team:x,model:llama3-70b").unwrap(),
            ["model:llama3-70b", "team:x"]
        );
        assert_eq!(parse_tags("für alle").unwrap(), ["für alle"]);
        let long = "x".repeat(TAG_BYTES_MAX + 1);
        for wrong in [",", "a,", "a/b", ".", "..", ".a", " a", "a ", "a\nb", "a\0", &long] {
            assert!(parse_tags(wrong).is_err(), "{wrong:?}");
        }
        let many: Vec<String> = (0..=TAGS_MAX).map(|number| number.to_string()).collect();
        assert!(parse_tags(&many.join(",")).is_err());
    }
}
