// Command strict reads manifests and holds those of the Prometheus Operator against its own types, with unknown fields
// refused. It prints the rules of a PrometheusRule as the file that Prometheus reads.
//
//	strict < manifests.yaml > rules.yaml
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "strict:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	manifests, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	monitors, rules := 0, 0
	for _, document := range bytes.Split(manifests, []byte("\n---\n")) {
		var meta struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &meta); err != nil {
			return err
		}
		switch meta.APIVersion + " " + meta.Kind {
		case "monitoring.coreos.com/v1 PodMonitor":
			var monitor monitoring.PodMonitor
			if err := yaml.UnmarshalStrict(document, &monitor); err != nil {
				return fmt.Errorf("PodMonitor: %w", err)
			}
			monitors++
		case "monitoring.coreos.com/v1 PrometheusRule":
			var rule monitoring.PrometheusRule
			if err := yaml.UnmarshalStrict(document, &rule); err != nil {
				return fmt.Errorf("PrometheusRule: %w", err)
			}
			spec, err := yaml.Marshal(rule.Spec)
			if err != nil {
				return err
			}
			if _, err := out.Write(spec); err != nil {
				return err
			}
			rules++
		}
	}
	if monitors != 1 || rules != 1 {
		return fmt.Errorf("%d PodMonitors and %d PrometheusRules, want one of each", monitors, rules)
	}
	return nil
}
