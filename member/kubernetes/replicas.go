package kubernetes

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

var statefulSets = Kind{Group: "apps/v1", Plural: "statefulsets", Noun: "StatefulSet", Verbs: "get"}

// statefulSet has the fields of a StatefulSet that determine its number of pods.
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

// Pod identifies a pod of a StatefulSet.
type Pod struct {
	Set     string
	Ordinal int
}

// ParsePod parses the name of a StatefulSet's pod, NAME-ORDINAL.
func ParsePod(name string) (Pod, error) {
	i := strings.LastIndexByte(name, '-')
	ordinal, err := strconv.ParseUint(name[i+1:], 10, 31)
	if err != nil || i <= 0 {
		return Pod{}, fmt.Errorf("%q is not the name of a StatefulSet's pod", name)
	}
	return Pod{name[:i], int(ordinal)}, nil
}

// IsScaledDown reports whether a StatefulSet has been scaled down so that it no longer includes the pod. A set that is
// deleted or scaled to zero, as for hibernation, keeps its members.
func (s *Server) IsScaledDown(ctx context.Context, pod Pod) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
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
