package kubernetes

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/rs/zerolog"
)

var statefulSets = Kind{Group: "apps/v1", Plural: "statefulsets", Noun: "StatefulSet", Verbs: "get"}

// statefulSet is as much of one as says how many pods there are to be.
type statefulSet struct {
	Metadata struct {
		DeletionTimestamp string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Replicas *int `json:"replicas"`
		Ordinals struct {
			Start int `json:"start"`
		} `json:"ordinals"`
	} `json:"spec"`
}

// Pod is one of a StatefulSet's.
type Pod struct {
	Set     string
	Ordinal int
}

var podName = regexp.MustCompile(`^(.+)-(\d{1,9})$`)

// ParsePod reads the name of a StatefulSet's pod: the set's, and a number.
func ParsePod(name string) (Pod, error) {
	parts := podName.FindStringSubmatch(name)
	if parts == nil {
		return Pod{}, fmt.Errorf("%q is not the name of a StatefulSet's pod", name)
	}
	ordinal, err := strconv.Atoi(parts[2])
	return Pod{parts[1], ordinal}, err
}

// Unwanted tells whether a pod's StatefulSet wants fewer members than it is one of. Where nobody says so the member stays.
func (s *Server) Unwanted(pod Pod, log zerolog.Logger) func(context.Context) bool {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, Patience)
		defer cancel()
		beyond, err := s.Beyond(ctx, pod)
		if err != nil {
			log.Warn().Err(err).Str("statefulset", pod.Set).Msg("it is not known whether fewer members are wanted: this one stays in its cluster")
		}
		return beyond
	}
}

// Beyond tells whether a pod's StatefulSet wants fewer pods, and not this one among them. One that is deleted, or wants no pod at all, as
// while a cluster hibernates, says nothing about the cluster's members.
func (s *Server) Beyond(ctx context.Context, pod Pod) (bool, error) {
	var set statefulSet
	if err := s.Get(ctx, statefulSets, pod.Set, &set); err != nil {
		return false, err
	}
	wanted := set.Spec.Replicas
	if wanted == nil || *wanted == 0 || set.Metadata.DeletionTimestamp != "" {
		return false, nil
	}
	return pod.Ordinal >= set.Spec.Ordinals.Start+*wanted, nil
}
