//! Every metric, label and label value in a query of the dashboard or of an alert is one that a registrar has.

use std::collections::BTreeSet;
use std::path::Path;

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, Expr, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde_json::Value;

use crate::read;
use crate::scrape::{self, Metrics};

/// Labels that Prometheus adds to what it scrapes from a pod.
const TARGET_LABELS: [&str; 5] = ["job", "instance", "namespace", "pod", "container"];

/// The one metric that Prometheus makes itself.
const UP: &str = "up";

/// Variables of the dashboard, and what takes their place.
const VARIABLES: [(&str, &str); 3] = [
    ("$__rate_interval", "5m"),
    ("$namespace", ".*"),
    ("$driver", ".*"),
];

/// A query and where it stands.
struct Query {
    place: String,
    expression: String,
    /// What is shown with each of its series; its labels must exist too.
    text: String,
}

/// What is wrong with the queries, a line each. Writes those of the dashboard to `out` as recording rules.
pub fn check(
    registrar: &Path,
    dashboard: &str,
    rules: &str,
    out: &str,
) -> Result<Vec<String>, String> {
    let metrics = scrape::metrics(registrar)?;
    let dashboard_json: Value =
        serde_json::from_str(&read(dashboard)?).map_err(|error| format!("{dashboard}: {error}"))?;
    let rules_yaml: Value =
        serde_saphyr::from_str(&read(rules)?).map_err(|error| format!("{rules}: {error}"))?;
    let panels = panel_queries(&dashboard_json);
    let alerts = alert_queries(&rules_yaml);
    let mut problems = Vec::new();
    for (file, queries) in [(dashboard, &panels), (rules, &alerts)] {
        if queries.is_empty() {
            problems.push(format!("{file}: no query in it"));
        }
        for query in queries {
            let found = query_problems(&metrics, query);
            problems.extend(
                found
                    .into_iter()
                    .map(|problem| format!("{file}: {}: {problem}", query.place)),
            );
        }
    }
    problems.extend(variable_problems(&metrics, &dashboard_json));
    std::fs::write(out, recording_rules(&panels)).map_err(|error| format!("{out}: {error}"))?;
    println!(
        "{} queries of panels, {} of alerts, {} metrics",
        panels.len(),
        alerts.len(),
        metrics.len()
    );
    Ok(problems)
}

fn panel_queries(dashboard: &Value) -> Vec<Query> {
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    panels
        .flat_map(|panel| {
            let title = panel["title"].as_str().unwrap_or("?");
            let targets = panel["targets"].as_array().into_iter().flatten();
            targets.map(move |target| {
                let mut expression = target["expr"].as_str().unwrap_or_default().to_owned();
                for (variable, value) in VARIABLES {
                    expression = expression.replace(variable, value);
                }
                let text = target["legendFormat"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                Query {
                    place: format!("panel {title:?}"),
                    expression,
                    text,
                }
            })
        })
        .collect()
}

fn alert_queries(rules: &Value) -> Vec<Query> {
    let groups = rules["groups"].as_array().into_iter().flatten();
    groups
        .flat_map(|group| group["rules"].as_array().into_iter().flatten())
        .map(|rule| Query {
            place: format!("alert {}", rule["alert"].as_str().unwrap_or("?")),
            expression: rule["expr"].as_str().unwrap_or_default().to_owned(),
            text: rule["annotations"].to_string(),
        })
        .collect()
}

fn query_problems(metrics: &Metrics, query: &Query) -> Vec<String> {
    let expression = match parser::parse(&query.expression) {
        Ok(expression) => expression,
        Err(error) => return vec![format!("{}: {error}", query.expression)],
    };
    let mut found = Found {
        metrics,
        selectors: 0,
        labels: shown_labels(&query.text),
        problems: Vec::new(),
    };
    let Ok(_) = walk_expr(&mut found, &expression);
    let Found {
        selectors,
        labels,
        mut problems,
        ..
    } = found;
    if selectors == 0 {
        problems.push("it reads no metric".to_owned());
    }
    let known: BTreeSet<_> = metrics
        .values()
        .flat_map(|labels| labels.keys().map(String::as_str))
        .collect();
    let unknown = labels.iter().filter(|label| {
        !known.contains(label.as_str()) && !TARGET_LABELS.contains(&label.as_str())
    });
    problems.extend(unknown.map(|label| format!("no metric has the label {label}")));
    problems
}

/// Labels in Grafana's `{{label}}` and in an alert's `{{ $labels.label }}`.
fn shown_labels(text: &str) -> BTreeSet<String> {
    text.split("{{")
        .skip(1)
        .filter_map(|rest| rest.split_once("}}"))
        .map(|(label, _)| label.trim())
        .filter(|label| !label.starts_with("$value"))
        .map(|label| label.trim_start_matches("$labels.").to_owned())
        .collect()
}

/// What a walk through a query finds.
struct Found<'a> {
    metrics: &'a Metrics,
    selectors: usize,
    /// Labels that are not a selector's: grouped by, matched on, shown.
    labels: BTreeSet<String>,
    problems: Vec<String>,
}

impl ExprVisitor for Found<'_> {
    type Error = std::convert::Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Self::Error> {
        match expression {
            Expr::VectorSelector(selector) => self.select(selector),
            Expr::MatrixSelector(selector) => self.select(&selector.vs),
            Expr::Aggregate(aggregate) => {
                let modifier = aggregate.modifier.iter();
                self.labels
                    .extend(modifier.flat_map(|modifier| modifier.labels().labels.clone()));
            }
            Expr::Binary(binary) => {
                let matching = binary
                    .modifier
                    .iter()
                    .filter_map(|modifier| modifier.matching.as_ref());
                self.labels
                    .extend(matching.flat_map(|matching| matching.labels().labels.clone()));
            }
            _ => {}
        }
        Ok(true)
    }
}

impl Found<'_> {
    fn select(&mut self, selector: &VectorSelector) {
        self.selectors += 1;
        let name = selector.name.as_deref().unwrap_or_default();
        if name == UP {
            return;
        }
        let Some(labels) = self.metrics.get(name) else {
            self.problems.push(format!("no metric is called {name:?}"));
            return;
        };
        for Matcher {
            op,
            name: label,
            value,
        } in &selector.matchers.matchers
        {
            let literal = matches!(op, MatchOp::Equal | MatchOp::NotEqual);
            match labels.get(label) {
                None if TARGET_LABELS.contains(&label.as_str()) => {}
                None => self.problems.push(format!("{name} has no label {label}")),
                Some(values) if literal && !values.contains(value) => {
                    self.problems.push(format!(
                        "{name}: {label} is never {value:?}, only {values:?}"
                    ));
                }
                Some(_) => {}
            }
        }
    }
}

/// The dashboard's own variables: `label_values(METRIC, LABEL)`.
fn variable_problems(metrics: &Metrics, dashboard: &Value) -> Vec<String> {
    let variables = dashboard["templating"]["list"]
        .as_array()
        .into_iter()
        .flatten();
    variables
        .filter(|variable| variable["type"] == "query")
        .filter_map(|variable| {
            let query = variable["query"]["query"].as_str().unwrap_or_default();
            let inner = query
                .strip_prefix("label_values(")
                .and_then(|rest| rest.strip_suffix(')'));
            let Some((metric, label)) = inner.and_then(|inner| inner.split_once(", ")) else {
                return Some(format!(
                    "variable {query:?} is no label_values(METRIC, LABEL)"
                ));
            };
            let known = metrics
                .get(metric)
                .is_some_and(|labels| labels.contains_key(label) || TARGET_LABELS.contains(&label));
            (!known).then(|| format!("variable {query:?}: no such metric or label"))
        })
        .collect()
}

/// JSON is YAML too.
fn recording_rules(queries: &[Query]) -> String {
    let rules: Vec<_> = queries
        .iter()
        .enumerate()
        .map(|(number, query)| serde_json::json!({"record": format!("panel:{number}"), "expr": query.expression}))
        .collect();
    serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(expression: &str, text: &str) -> Vec<String> {
        let labels = [("code".to_owned(), ["OK".to_owned()].into())];
        let metrics = [("calls_total".to_owned(), labels.into())].into();
        let query = Query {
            place: "p".to_owned(),
            expression: expression.to_owned(),
            text: text.to_owned(),
        };
        query_problems(&metrics, &query)
    }

    #[test]
    fn a_right_query_passes() {
        let right = "sum by (code, pod) (rate(calls_total{code!=\"OK\", namespace=~\".*\"}[5m])) and on (job) up";
        assert_eq!(
            problems(
                right,
                "{{code}} {{ $labels.pod }} {{ $value | printf \"%.0f\" }}"
            ),
            Vec::<String>::new()
        );
    }

    #[test]
    fn whatever_does_not_exist_is_named() {
        assert_eq!(
            problems("rate(call_total[5m])", ""),
            ["no metric is called \"call_total\""]
        );
        assert_eq!(
            problems("calls_total{cod=\"OK\"}", ""),
            ["calls_total has no label cod"]
        );
        assert_eq!(
            problems("calls_total{code=\"Ok\"}", ""),
            ["calls_total: code is never \"Ok\", only {\"OK\"}"]
        );
        assert_eq!(
            problems("sum by (cod) (calls_total)", ""),
            ["no metric has the label cod"]
        );
        assert_eq!(
            problems("calls_total unless on (cod) up", ""),
            ["no metric has the label cod"]
        );
        assert_eq!(
            problems("calls_total", "{{cod}}"),
            ["no metric has the label cod"]
        );
        assert_eq!(problems("vector(1)", ""), ["it reads no metric"]);
        assert_eq!(problems("sum(", "").len(), 1);
    }
}
