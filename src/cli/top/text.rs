//! Numbers, paths and bars as the columns of the picture show them.

const SPARKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The result of a job without the Unix seconds at the beginning of that of a scrub.
pub(super) fn without_time(text: &str) -> &str {
    let rest = text.strip_prefix("at ").and_then(|text| text.split_once(": "));
    rest.filter(|(time, _)| time.bytes().all(|byte| byte.is_ascii_digit())).map_or(text, |(_, rest)| rest)
}

/// A horizontal bar in eighths of a column.
pub(super) fn bar(share: f64, columns: usize) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (share.clamp(0.0, 1.0) * columns as f64 * 8.0).round() as usize;
    let (whole, part) = (eighths / 8, eighths % 8);
    let mut text = "█".repeat(whole);
    if whole < columns {
        text.extend(EIGHTHS.get(part));
    }
    let rest = columns.saturating_sub(whole + 1);
    text + &" ".repeat(rest)
}

/// One column for each number, the largest one full.
pub(super) fn spark(counts: &[u64]) -> String {
    let most = counts.iter().copied().max().unwrap_or(0);
    let column = |count: &u64| match (most, *count) {
        (0, _) | (_, 0) => ' ',
        (most, count) => {
            let height = ((count as f64 / most as f64) * 7.0).round() as usize;
            SPARKS.get(height).copied().unwrap_or(' ')
        }
    };
    counts.iter().map(column).collect()
}

/// A path in at most this many columns. Of a longer one, names become their first letters, those in the middle first;
/// then the middle is left out. Numbers of layers stay, which tell tensors apart.
pub(super) fn shortened(path: &str, columns: usize) -> String {
    let mut parts: Vec<String> = path.split_inclusive(['/', '.']).map(str::to_owned).collect();
    let last = parts.len().saturating_sub(1);
    for place in (1..last).chain(0..last.min(1)) {
        if parts.iter().map(|part| part.chars().count()).sum::<usize>() <= columns {
            break;
        }
        if let Some(part) = parts.get_mut(place)
            && !part.starts_with(|letter: char| letter.is_ascii_digit())
        {
            let (first, end) = (part.chars().next(), part.chars().next_back());
            *part = first.into_iter().chain(end.filter(|_| part.chars().count() > 1)).collect();
        }
    }
    ends_of(&parts.concat(), columns)
}

/// The beginning of a text, in at most this many columns.
pub(super) fn beginning(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// The beginning and the end of a text, in at most this many columns.
pub(super) fn ends_of(text: &str, columns: usize) -> String {
    let letters = text.chars().count();
    if letters <= columns {
        return text.to_owned();
    }
    let kept = columns.saturating_sub(1);
    let (head, tail) = (kept / 3, kept - kept / 3);
    let beginning: String = text.chars().take(head).collect();
    format!("{beginning}…{}", text.chars().skip(letters - tail).collect::<String>())
}

pub(super) fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 10.0 => format!("{value:.1}"),
        value if value < 100_000.0 => format!("{value:.0}"),
        value => format!("{:.0}k", value / 1000.0),
    }
}

pub(super) fn latency(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        seconds if seconds < 0.1 => format!("{:.1} ms", seconds * 1e3),
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{seconds:.1} s"),
    }
}

pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::{bar, beginning, latency, shortened, spark, without_time};

    #[test]
    fn parts_of_the_picture_have_the_length_that_they_should() {
        assert_eq!(bar(0.0, 4), "    ");
        assert_eq!(bar(0.5, 4), "██  ");
        assert_eq!(bar(1.0, 4), "████");
        assert_eq!(bar(0.03125, 4), "▏   ");
        assert_eq!(bar(1.0, 0), "");
        assert_eq!(spark(&[0, 1, 7, 14]), " ▂▅█");
        assert_eq!(without_time("at 1795750942: 8 blocks checked"), "8 blocks checked");
        assert_eq!(without_time("at rest: 8"), "at rest: 8");
        assert_eq!(["tier=q8:all:lossy", "scrub"].map(|text| beginning(text, 11)), ["tier=q8:al…", "scrub"]);
        let tensor = "acme/minilm/encoder.layer.15.attention.self.value.weight";
        assert_eq!(shortened(tensor, 33), "acme/m/e.l.15.a.self.value.weight");
        assert_eq!(shortened(tensor, 22), "a/m/e.l…5.a.s.v.weight");
        assert_eq!(shortened("acme/a-long/path", 10), "a/a/path");
        assert_eq!(shortened("path", 1), "…");
        assert_eq!(shortened("path", 4), "path");
        assert_eq!(["12 µs", "1.5 ms", "250 ms", "2.0 s"], [12e-6, 1.5e-3, 0.25, 2.0].map(latency));
    }
}
