"""Figures, tables and one self-contained HTML page, drawn from plain results (dicts and arrays)."""

from attnmix.report.ablation import ablation_markdown as ablation_markdown
from attnmix.report.ablation import format_ablation as format_ablation
from attnmix.report.accuracy_cost import accuracy_cost as accuracy_cost
from attnmix.report.benchmark import print_table as print_table
from attnmix.report.benchmark import ratio_chart as ratio_chart
from attnmix.report.benchmark import write_benchmark as write_benchmark
from attnmix.report.confusion import confusion_matrix as confusion_matrix
from attnmix.report.curves import learning_curves as learning_curves
from attnmix.report.evaluation.page import write_evaluation as write_evaluation
from attnmix.report.evaluation.tables import evaluation_markdown as evaluation_markdown
from attnmix.report.evaluation.tables import evaluation_summary as evaluation_summary
from attnmix.report.gallery import GalleryRow as GalleryRow
from attnmix.report.gallery import gallery as gallery
from attnmix.report.page import write_report as write_report
from attnmix.report.pairs import ImagePairs as ImagePairs
from attnmix.report.pairs import MixedPair as MixedPair
from attnmix.report.pairs import pairs as pairs
from attnmix.report.table import control_table as control_table
from attnmix.report.table import format_summary as format_summary
from attnmix.report.table import summary_markdown as summary_markdown
from attnmix.report.table import summary_table as summary_table
