//! The metrics of all daemons of a node as one text, so that a collector asks one port.
//!
//! A daemon's own text is in its control file. Its samples get the label `daemon` here, the digest of the source and its
//! credentials, beside the label `store` that they have: two daemons may mount one remote.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::csi::driver::Driver;
use crate::csi::failure::Outcome;
use crate::model::{Error, ErrorKind, Result};

/// A daemon that has not answered for this time counts as one that is down. A collector waits ten seconds.
const PATIENCE: Duration = Duration::from_secs(4);
/// The control file of a mount.
const METRICS: &str = ".ctl/metrics";
/// The text of a daemon with the most collections that it names is far shorter.
const TEXT_BYTES_MAX: u64 = 16 << 20;
/// The label of a daemon.
const DAEMON: &str = "daemon";
/// The last line of a text.
const END: &str = "# EOF";

/// The metrics of this node as OpenMetrics text.
pub(in crate::csi) fn of_node(driver: &Driver) -> Result<String> {
    let asked = asked(driver).map_err(|failure| Error::new(ErrorKind::Io, failure.text))?;
    let mut merged = Merged::default();
    for (name, help, value) in OWN {
        let mut text = format!("# HELP {name} {help}.\n# TYPE {name} gauge\n");
        for daemon in &asked {
            let (store, value) = (escaped(&daemon.place), value(daemon));
            text.push_str(&format!("{name}{{store=\"{store}\",{DAEMON}=\"{}\"}} {value}\n", daemon.digest));
        }
        merged.add(&text, None);
    }
    for daemon in &asked {
        let label = format!("{DAEMON}=\"{}\"", daemon.digest);
        daemon.text.iter().for_each(|text| merged.add(text, Some(&label)));
    }
    Ok(merged.into_text())
}

/// A daemon that was asked for its metrics.
struct Asked {
    digest: String,
    /// The URL or the path of its source.
    place: String,
    volumes: usize,
    /// `None` if it has not answered.
    text: Option<String>,
}

/// A name, a description, and the value for a daemon.
type Gauge = (&'static str, &'static str, fn(&Asked) -> usize);

/// The metrics of the plugin itself.
const OWN: [Gauge; 2] = [
    ("tierfs_csi_daemon_up", "1 if a daemon of this node has answered, or else 0", |daemon| {
        usize::from(daemon.text.is_some())
    }),
    ("tierfs_csi_volumes", "volumes of this node by daemon", |daemon| daemon.volumes),
];

/// A text as the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Asks all daemons at the same time.
fn asked(driver: &Driver) -> Outcome<Vec<Asked>> {
    let until = Instant::now() + PATIENCE;
    let all = driver.daemons.all()?;
    let records = driver.records.volumes().readable;
    Ok(std::thread::scope(|scope| {
        let ask = |digest: String| {
            let volumes = records.iter().filter(|record| record.daemon == digest).count();
            let known = driver.daemons.known(&digest).ok().flatten();
            let place = known.map(|daemon| daemon.place().to_owned()).unwrap_or_default();
            let asking = move || {
                let path = driver.daemons.mountpoint(&digest).join(METRICS);
                let text = driver.asked(&digest, "metrics", until, move || text_of(&path));
                Asked { digest, place, volumes, text: text.and_then(std::io::Result::ok) }
            };
            // Without a thread, the daemon is missing in this text.
            std::thread::Builder::new().spawn_scoped(scope, asking).ok()
        };
        let asking: Vec<_> = all.into_iter().filter_map(ask).collect();
        asking.into_iter().filter_map(|asked| asked.join().ok()).collect()
    }))
}

fn text_of(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Texts as one, in which each family of metrics is in one place, as OpenMetrics wants it.
#[derive(Default)]
struct Merged(HashMap<String, Described>);

#[derive(Default)]
struct Described {
    /// The number of families before it.
    place: usize,
    /// The lines that say what it is, with their keywords.
    head: Vec<(String, String)>,
    samples: String,
}

impl Merged {
    /// Adds a text, whose samples get one more label. Lines that are no metrics are left out.
    fn add(&mut self, text: &str, label: Option<&str>) {
        let mut current = None;
        for line in text.lines().take_while(|line| *line != END) {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words.as_slice() {
                ["#", keyword @ ("HELP" | "TYPE" | "UNIT"), name, ..] => {
                    let family = self.family(name);
                    if !family.head.iter().any(|(known, _)| known == keyword) {
                        family.head.push(((*keyword).to_owned(), line.to_owned()));
                    }
                    current = Some((*name).to_owned());
                }
                _ => {
                    let sample = label.map_or_else(|| Some(line.to_owned()), |label| labelled(line, label));
                    if let Some((name, sample)) = current.as_ref().zip(sample) {
                        let family = self.family(name);
                        family.samples.push_str(&sample);
                        family.samples.push('\n');
                    }
                }
            }
        }
    }

    fn family(&mut self, name: &str) -> &mut Described {
        let place = self.0.len();
        self.0.entry(name.to_owned()).or_insert_with(|| Described { place, ..Described::default() })
    }

    fn into_text(self) -> String {
        let mut families: Vec<Described> = self.0.into_values().collect();
        families.sort_by_key(|family| family.place);
        let mut text = String::new();
        for Described { head, samples, .. } in families {
            head.iter().for_each(|(_, line)| text.push_str(&format!("{line}\n")));
            text.push_str(&samples);
        }
        text.push_str(&format!("{END}\n"));
        text
    }
}

/// Adds a label to a line that has a sample. `None` for a line that has none.
fn labelled(line: &str, label: &str) -> Option<String> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let is_name =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte));
    let labels = rest.strip_prefix('{');
    let labelled = match labels {
        Some(none) if none.starts_with('}') => format!("{name}{{{label}{none}"),
        Some(labels) => format!("{name}{{{label},{labels}"),
        None => format!("{name}{{{label}}}{rest}"),
    };
    is_name.then_some(labelled)
}

#[cfg(test)]
mod tests {
    use super::Merged;

    #[test]
    fn families_of_two_texts_are_in_one_place_and_their_samples_have_one_more_label() {
        let text = |value: u32| {
            format!(
                "# HELP reads bytes. With a }} and a {{.\n# TYPE reads counter\nreads_total{{store=\"a b{{}}\"}} {value}\n\
                 # HELP age seconds\n# TYPE age gauge\n# UNIT age seconds\nage {value}\nage{{}} {value}\n# EOF\nlate 1\n"
            )
        };
        let mut merged = Merged::default();
        merged.add("alone 1\n\u{0}\n# TYPE own gauge\nown 7\n# EOF\n", None);
        merged.add(&text(1), Some("daemon=\"x\""));
        merged.add(&text(2), Some("daemon=\"y\""));
        merged.add("# TYPE age gauge\n{} 3\n\nno-name 4\n", Some("daemon=\"z\""));
        assert_eq!(
            merged.into_text(),
            "# TYPE own gauge\nown 7\n# HELP reads bytes. With a } and a {.\n# TYPE reads counter\n\
             reads_total{daemon=\"x\",store=\"a b{}\"} 1\nreads_total{daemon=\"y\",store=\"a b{}\"} 2\n\
             # HELP age seconds\n# TYPE age gauge\n# UNIT age seconds\nage{daemon=\"x\"} 1\nage{daemon=\"x\"} 1\n\
             age{daemon=\"y\"} 2\nage{daemon=\"y\"} 2\n# EOF\n"
        );
    }
}
