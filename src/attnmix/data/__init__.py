"""Data sets: two embedded ones, folders of images, and whatever else timm's factory opens."""

from attnmix.data.digits import Digits as Digits
from attnmix.data.digits_in_scenes import DigitsInScenes as DigitsInScenes
from attnmix.data.factory import create_datasets as create_datasets
from attnmix.data.factory import create_evaluation_set as create_evaluation_set
from attnmix.data.factory import evaluation_settings as evaluation_settings
from attnmix.data.factory import known_data as known_data
from attnmix.data.labelled import UNREAD as UNREAD
from attnmix.data.labelled import LabelledImages as LabelledImages
from attnmix.data.transforms import create_transforms as create_transforms
