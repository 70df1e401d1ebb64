//! The logging flags that every program here shares: those of the Go sidecars' component-base today, and klog's own that
//! sidecars took until component-base came and that manifests still carry.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::{Format, Level, Settings, VModule, Verbosity};
use crate::goflag::{GoDuration, Quoted, boolean};

/// Logging flags, to be flattened into a program's own: `#[command(flatten)] klog: klog::Flags`.
#[derive(Clone, Debug, Args)]
// Or clap makes a group of that name, and every program calls its flags so.
#[group(skip)]
pub struct Flags {
    #[arg(
        long = "v",
        default_value = "0",
        help = "number for the log level verbosity"
    )]
    verbosity: Level,

    // Unlike any other flag, each one given counts: a `Vec` appends.
    #[arg(
        long,
        help = "comma-separated list of pattern=N settings for file-filtered logging (only works for text log format)"
    )]
    vmodule: Vec<VModule>,

    #[arg(
        long,
        default_value = "text",
        help = r#"Sets the log format. Permitted formats: "json" (gated by LoggingBetaOptions), "text"."#
    )]
    logging_format: String,

    #[arg(
        long,
        default_value = "5s",
        help = "Maximum number of seconds between log flushes"
    )]
    log_flush_frequency: GoDuration,

    #[arg(
        long,
        help = "[Alpha] In text format, write error messages to stderr and info messages to stdout. Not available."
    )]
    log_text_split_stream: bool,

    #[arg(
        long,
        default_value = "0",
        help = "[Alpha] In text format, the size of the buffer for info messages. Not available."
    )]
    log_text_info_buffer_size: Quantity,

    #[arg(
        long,
        help = "[Alpha] In JSON format, write error messages to stderr and info messages to stdout. Not available."
    )]
    log_json_split_stream: bool,

    #[arg(
        long,
        default_value = "0",
        help = "[Alpha] In JSON format, the size of the buffer for info messages. Not available."
    )]
    log_json_info_buffer_size: Quantity,

    #[arg(
        long,
        action = ArgAction::Set,
        value_parser = automaxprocs,
        default_value = "false",
        help = "accepted for compatibility: there is one thread, whatever the CPU quota"
    )]
    automaxprocs: bool,

    #[command(flatten)]
    ignored: Ignored,
}

/// What the flags say, once they are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validation {
    /// How to log. When there are problems: how to report them.
    pub settings: Settings,
    /// Flags without effect that were given, to be logged once there is a log: a warning each.
    pub warnings: Vec<IgnoredFlag>,
    /// Everything that is wrong: if it is not empty, the process exits with 1.
    pub problems: Vec<Problem>,
}

/// A contradiction or an impossible value. It starts as the original's does, and names the flag to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// `--log-flush-frequency` of zero or less.
    #[error(
        "flushFrequency: Invalid value: \"{0}\": Must be greater than zero (--log-flush-frequency)"
    )]
    FlushFrequency(GoDuration),
    /// `--logging-format` is something else than `text` or `json`.
    #[error("format: Invalid value: {}: Unsupported log format (--logging-format takes text or json)", Quoted::new(.0))]
    Format(String),
    /// `--vmodule` with another format than text.
    #[error(
        "vmodule: Forbidden: Only supported for text log format (remove --vmodule or --logging-format)"
    )]
    VModule,
    /// A flag that only a feature gate would allow, and no such gate can be opened.
    #[error(
        "options.{option}: Forbidden: Feature LoggingAlphaOptions is disabled (remove --{flag})"
    )]
    Alpha {
        /// The original's name for it.
        option: &'static str,
        /// Without its dashes.
        flag: &'static str,
    },
}

/// A flag that is accepted for old manifests and does nothing. It displays with its dashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IgnoredFlag(&'static str);

impl Display for IgnoredFlag {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "--{}", self.0)
    }
}

impl Validation {
    /// Logs a warning for each flag without effect.
    pub fn log_warnings(&self) {
        for flag in &self.warnings {
            tracing::warn!(%flag, "Flag has no effect any more and can be removed");
        }
    }
}

impl Flags {
    /// Checks the flags as component-base does, which is after they were all read.
    pub fn validate(&self) -> Validation {
        let format = match &*self.logging_format {
            "text" => Some(Format::Text),
            "json" => Some(Format::Json),
            _ => None,
        };
        let mut problems = Vec::new();
        if self.log_flush_frequency <= GoDuration::default() {
            problems.push(Problem::FlushFrequency(self.log_flush_frequency));
        }
        if format.is_none() {
            problems.push(Problem::Format(self.logging_format.clone()));
        }
        let modules = self.vmodule.iter().any(|module| !module.is_empty());
        if modules && format != Some(Format::Text) && !self.logging_format.is_empty() {
            problems.push(Problem::VModule);
        }
        let alpha = [
            (
                self.log_text_split_stream,
                "text.splitStream",
                "log-text-split-stream",
            ),
            (
                self.log_text_info_buffer_size.0,
                "text.infoBufferSize",
                "log-text-info-buffer-size",
            ),
            (
                self.log_json_split_stream,
                "json.splitStream",
                "log-json-split-stream",
            ),
            (
                self.log_json_info_buffer_size.0,
                "json.infoBufferSize",
                "log-json-info-buffer-size",
            ),
        ];
        let given = alpha.into_iter().filter(|(given, ..)| *given);
        problems.extend(given.map(|(_, option, flag)| Problem::Alpha { option, flag }));
        Validation {
            settings: Settings {
                format: format.unwrap_or_default(),
                verbosity: Verbosity::new(self.verbosity, self.vmodule.iter().cloned()),
            },
            warnings: self.ignored.0.clone(),
            problems,
        }
    }
}

/// Go's boolean, but in `strconv`'s words, and nothing counts as true: it is a function there, not a variable.
fn automaxprocs(text: &str) -> Result<bool, String> {
    if text.is_empty() {
        return Ok(true);
    }
    boolean(text).map_err(|_| {
        format!(
            "strconv.ParseBool: parsing {}: invalid syntax",
            Quoted::new(text)
        )
    })
}

/// A Kubernetes quantity, of which only matters whether it is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quantity(bool);

impl FromStr for Quantity {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SYNTAX: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        const SUFFIXES: [&str; 16] = [
            "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
        ];
        let is_digit = |c: char| c.is_ascii_digit();
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let fraction = unsigned.trim_start_matches(is_digit);
        let suffix = fraction
            .strip_prefix('.')
            .map_or(fraction, |digits| digits.trim_start_matches(is_digit));
        let number = &unsigned[..unsigned.len() - suffix.len()];
        let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if text.is_empty() || !exponent.chars().all(is_digit) {
            return Err(SYNTAX);
        }
        let power = suffix.strip_prefix(['e', 'E']);
        let known =
            SUFFIXES.contains(&suffix) || power.is_some_and(|power| power.parse::<i32>().is_ok());
        if !known {
            return Err("unable to parse quantity's suffix");
        }
        Ok(Self(number.contains(|c| matches!(c, '1'..='9'))))
    }
}

/// klog's flags that have no effect, by name, and whether they are booleans.
const IGNORED: [(&str, bool); 13] = [
    ("logtostderr", true),
    ("alsologtostderr", true),
    ("alsologtostderrthreshold", false),
    ("stderrthreshold", false),
    ("skip_headers", true),
    ("skip_log_headers", true),
    ("add_dir_header", true),
    ("one_output", true),
    ("log_dir", false),
    ("log_file", false),
    ("log_file_max_size", false),
    ("log_backtrace_at", false),
    ("legacy_stderr_threshold_behavior", true),
];

/// Those of `IGNORED` that were given. Written by hand, since the table says it all.
#[derive(Clone, Debug)]
struct Ignored(Vec<IgnoredFlag>);

impl Args for Ignored {
    fn augment_args(command: Command) -> Command {
        command.args(IGNORED.iter().map(|(name, is_boolean)| {
            let arg = Arg::new(*name)
                .long(*name)
                .hide(true)
                .action(ArgAction::Set);
            if *is_boolean {
                arg.value_parser(boolean)
            } else {
                arg.value_parser(clap::value_parser!(std::ffi::OsString))
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Ignored {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let names = IGNORED.iter().map(|(name, _)| *name);
        Ok(Self(names.filter(given).map(IgnoredFlag).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
