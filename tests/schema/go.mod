module torchtpu.dev/schema

go 1.25

require github.com/ray-project/kuberay/ray-operator v1.6.0
